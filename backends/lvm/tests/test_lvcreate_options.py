"""Only listed options reach lvcreate."""

import pytest
from csi_multi_lvm import lvcreate_options
from csi_multi_lvm.lvcreate_options import OPTIONS, RAID, THICK
from hypothesis import given
from hypothesis import strategies as st

from csi_multi.contract import InvalidArgument


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("", "linear", ""),
        ("  \t ", "linear", ""),
        ("--alloc cling", "linear", "--alloc cling"),
        ("--alloc=cling", "raid5", "--alloc cling"),
        ("--contiguous y   --readahead none", "striped", "--contiguous y --readahead none"),
        ("--readahead 256", "thin", "--readahead 256"),
        ("--regionsize 512k", "raid1", "--regionsize 512k"),
        ("--minrecoveryrate 100 --maxrecoveryrate 2000", "raid6", "--minrecoveryrate 100 --maxrecoveryrate 2000"),
        ("--maxrecoveryrate 0", "raid10", "--maxrecoveryrate 0"),
        ("--minrecoveryrate 0", "raid10", "--minrecoveryrate 0"),
    ],
)
def test_listed_options_become_arguments(text, kind, words):
    assert " ".join(lvcreate_options.parse(text, kind)) == words


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("--aloc cling", "linear", "unknown option '--aloc'; did you mean '--alloc'"),
        ("--zzz", "linear", "valid options: --alloc, --contiguous"),
        ("-an", "linear", "unknown option '-an'"),
        ("/dev/sdb", "linear", "unknown option '/dev/sdb'"),
        ("--config global/units=b", "linear", "unknown option '--config'"),
        ("--alloc inherit", "linear", "--alloc must be contiguous, .* not 'inherit'"),
        ("--alloc clingy", "linear", "--alloc must be .* not 'clingy'"),
        ("--readahead 8;reboot", "linear", "--readahead must be .* not '8;reboot'"),
        ("--alloc", "linear", "--alloc must be .* but has no value"),
        ("--alloc=", "linear", "--alloc must be .* not ''"),
        ("--alloc --regionsize", "raid1", "--alloc must be .* not '--regionsize'"),
        ("--nosync", "raid1", "unknown option '--nosync'"),  # never-written blocks would differ between the copies
        ("--regionsize 2m", "linear", "--regionsize is not valid for type linear"),
        ("--regionsize 3m", "raid1", "--regionsize 3m is not a power of two"),
        ("--regionsize 2k", "raid1", "--regionsize 2k is not a power of two of at least 4k"),
        ("--readahead 255", "linear", "--readahead 255 is not a multiple of 8 sectors"),
        ("--readahead -1", "linear", "--readahead must be auto, none or a number of sectors"),
        ("--readahead \u0661", "linear", "--readahead must be"),
        ("--alloc cling --alloc normal", "linear", "--alloc is given twice"),
        ("--alloc cling --contiguous y", "linear", "--alloc and --contiguous set the same policy"),
        ("--alloc anywhere", "raid1", "--alloc anywhere lets images of a raid1 volume share a disk"),
        ("--minrecoveryrate 5", "raid1", "needs a --maxrecoveryrate of at least 5"),
        ("--minrecoveryrate 5 --maxrecoveryrate 0", "raid1", "needs a --maxrecoveryrate of at least 5"),
        ("--minrecoveryrate 5 --maxrecoveryrate 4", "raid1", "needs a --maxrecoveryrate of at least 5"),
    ],
)
def test_everything_else_is_refused_with_a_remedy(text, kind, message):
    with pytest.raises(InvalidArgument, match=f"parameters: 'lvcreateOptions'.*{message}"):
        lvcreate_options.parse(text, kind)


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_refused_for_types_that_it_is_not_for(name):
    for kind in {"thin", *THICK} - set(OPTIONS[name].types):
        with pytest.raises(InvalidArgument, match=f"{name} is not valid for type {kind}"):
            lvcreate_options.parse(name if OPTIONS[name].pattern is None else f"{name} y", kind)


@given(st.text(max_size=40), st.sampled_from(["thin", *THICK]))
def test_any_text_becomes_listed_options_with_valid_values_or_is_refused(text, kind):
    try:
        words = lvcreate_options.parse(text, kind)
    except InvalidArgument:
        return
    assert all(word in OPTIONS or word.isalnum() for word in words)


@given(
    st.lists(st.sampled_from([*OPTIONS, "y", "n", "cling", "1", "2m", "-Zy", ";", "=", "--alloc=normal"]), max_size=6)
)
def test_any_mixture_of_words_comes_out_as_pairs_that_a_tag_can_keep(words):
    try:
        parsed = lvcreate_options.parse(" ".join(words), "raid1")
    except InvalidArgument:
        return
    facts = dict(fact.partition("=")[::2] for fact in lvcreate_options.to_fields(parsed))
    assert tuple(lvcreate_options.from_fields(facts)) == parsed
    assert {word for word in parsed if word.startswith("-")} <= set(OPTIONS)


def test_what_is_for_raid_is_not_for_others():
    assert [name for name, option in OPTIONS.items() if not set(option.types) - set(RAID)] == [
        "--regionsize",
        "--minrecoveryrate",
        "--maxrecoveryrate",
    ]
