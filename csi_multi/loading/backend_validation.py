"""Checks that a class which a package registers can be a backend, made on the class alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from ..contract.backend import CONTRACT, FEATURES, Attach, Backend
from ..contract.model import AccessMode
from ..contract.params import Schema, describe
from .backend_proxy import adds_secrets, contract_methods, takes_secrets

SCHEMAS = ("Config", "Parameters", "MutableParameters", "SnapshotParameters", "GroupSnapshotParameters")


def why_unusable(candidate: Any) -> str:
    """Return why a class cannot be a backend; "" if it can."""
    if not (inspect.isclass(candidate) and issubclass(candidate, Backend)):
        return "is not a class derived from csi_multi.contract.backend.Backend"
    declared = getattr(candidate, "contract", None)
    if not (isinstance(declared, tuple) and [type(part) for part in declared] == [int, int]):
        return f"does not declare the contract version it was written for; add for example contract = {CONTRACT}"
    if declared[0] != CONTRACT[0] or declared[1] > CONTRACT[1]:
        return (
            f"was written for contract {declared}, but this driver has contract {CONTRACT}; install a matching version"
        )
    if absent := sorted(getattr(candidate, "__abstractmethods__", ())):
        return f"lacks {', '.join(absent)}; a feature must be implemented completely"
    reasons = (
        *(_schema_problem(candidate, name) for name in SCHEMAS),
        *(_undeclared_feature(candidate, one) for one in FEATURES),
        *(_method_problem(candidate, name, function) for name, function in contract_methods(candidate).items()),
        _attribute_problem(candidate),
    )
    return next((reason for reason in reasons if reason), "")


def _method_problem(candidate: type[Backend], name: str, declared: Callable[..., Any]) -> str:
    found = inspect.getattr_static(candidate, name)
    if isinstance(found, property) or not callable(getattr(candidate, name)):
        return f"{name} is a {type(found).__name__}, not a method"
    if inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found) or inspect.isgeneratorfunction(found):
        return f"{name} is asynchronous or a generator; contract methods must be plain functions"
    return _secrets_problem(candidate, name, declared)


def _secrets_problem(candidate: type[Backend], name: str, function: Callable[..., Any]) -> str:
    if candidate.contract < (1, 1) or not adds_secrets(function) or takes_secrets(getattr(candidate, name)):
        return ""
    return (
        f"{name} has no parameter 'secrets', which contract 1.1 added; write {name}(self, handle: str, "
        "secrets: Strings = NO_SECRETS), or declare contract = (1, 0)"
    )


def _attribute_problem(candidate: type[Backend]) -> str:
    modes = candidate.access_modes
    if not isinstance(modes, frozenset) or not all(isinstance(mode, AccessMode) for mode in modes):
        return "access_modes is not a frozenset of csi_multi.contract.model.AccessMode"
    growth = {name: getattr(candidate, name, True) for name in ("online", "offline")}
    if odd := [name for name, value in growth.items() if not isinstance(value, bool)]:
        return f"{odd[0]} is not a bool"
    if not growth["offline"] and not (growth["online"] and issubclass(candidate, Attach)):
        return "offline is False: volumes that grow only while they are attached need the feature Attach and online"
    return ""


def _schema_problem(candidate: type[Backend], name: str) -> str:
    schema = getattr(candidate, name)
    if not (inspect.isclass(schema) and issubclass(schema, Schema)):
        return f"{name} is not a class derived from csi_multi.contract.params.Schema"
    try:
        list(describe(schema))
    except Exception as error:
        return f"{name} is not a usable schema: {_field_problem(schema) or _first_line(error)}"
    return ""


def _field_problem(schema: type[Schema]) -> str:
    """Return the first field whose type cannot be used, why, and the form that works; "" if it is none of them."""
    try:
        types = get_type_hints(schema, include_extras=True)
    except Exception:  # a name that does not exist: its text says which
        return ""
    for name in schema.__struct_fields__:
        try:
            msgspec.json.schema(types[name])
        except Exception as error:
            return f"field {name!r}: {_first_line(error)}{_working_form(types[name])}"
    return ""


def _working_form(given: Any) -> str:
    """Return the form for a field that may be unset, when its rules stand around the whole union with None."""
    if get_origin(given) is not Annotated or type(None) not in get_args(inner := given.__origin__):
        return ""
    others = [getattr(one, "__name__", str(one)) for one in get_args(inner) if one is not type(None)]
    return f"; write the rules at the type, and None outside: Annotated[{' | '.join(others)}, Doc(...)] | None"


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line), type(error).__name__)


def _undeclared_feature(candidate: type[Backend], feature: type[Backend]) -> str:
    if issubclass(candidate, feature):
        return ""
    own = [name for name in getattr(feature, "__abstractmethods__", ()) if name not in Backend.__abstractmethods__]
    found = [name for name in own if hasattr(candidate, name) and feature.__dict__.get(name) is not None]
    return f"has the method {found[0]} but does not derive from {feature.__name__}" if found else ""
