// Command parser reads deployment files as those read them who they are for: Nomad's job files with Nomad's own
// parser, its volume files into its API's type, and objects of the operators' APIs, which Kubernetes' own schemas do
// not have, into the operators' types.
//
//	parser job FILE...      parser volume FILE...      parser objects FILE...
package main

import (
	"bytes"
	"fmt"
	"os"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/go-viper/mapstructure/v2"
	"github.com/hashicorp/hcl"
	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/jobspec2"
	groupsnapshot "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshot "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// SnapshotMetadataService is the type of cbt.storage.k8s.io/v1beta1, which is in no Go module of its own.
type SnapshotMetadataService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              struct {
		Audience string `json:"audience"`
		Address  string `json:"address"`
		CACert   []byte `json:"caCert"`
	} `json:"spec"`
}

var kinds = map[string]func() any{
	"cbt.storage.k8s.io/v1beta1 SnapshotMetadataService":       func() any { return &SnapshotMetadataService{} },
	"groupsnapshot.storage.k8s.io/v1 VolumeGroupSnapshotClass": func() any { return &groupsnapshot.VolumeGroupSnapshotClass{} },
	"cert-manager.io/v1 Certificate":                 func() any { return &certmanager.Certificate{} },
	"monitoring.coreos.com/v1 PrometheusRule":        func() any { return &monitoring.PrometheusRule{} },
	"monitoring.coreos.com/v1 ServiceMonitor":        func() any { return &monitoring.ServiceMonitor{} },
	"snapshot.storage.k8s.io/v1 VolumeSnapshotClass": func() any { return &snapshot.VolumeSnapshotClass{} },
	"snapshot.storage.k8s.io/v1 VolumeSnapshot":      func() any { return &snapshot.VolumeSnapshot{} },
}

func main() {
	read := map[string]func(string, []byte) error{"job": job, "volume": volume, "objects": objects}[os.Args[1]]
	for _, path := range os.Args[2:] {
		body, err := os.ReadFile(path)
		if err == nil {
			err = read(path, body)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", path, err)
			os.Exit(1)
		}
	}
}

// job fails on what `nomad job validate` would refuse before it asks a server.
func job(path string, body []byte) error {
	_, err := jobspec2.ParseWithConfig(&jobspec2.ParseConfig{Path: path, Body: body, AllowFS: true, Strict: true})
	return err
}

// volume fails on a key that a volume does not have. Some are no fields of the API's type: the command reads them itself.
func volume(path string, body []byte) error {
	found := map[string]any{}
	if err := hcl.Decode(&found, string(body)); err != nil {
		return err
	}
	blocks := map[string]any{
		"capability":    &api.CSIVolumeCapability{},
		"mount_options": &api.CSIMountOptions{},
	}
	for name, block := range blocks {
		given, _ := found[name].([]map[string]any)
		for _, one := range given {
			if err := strict(one, block); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		delete(found, name)
	}
	for _, name := range []string{"type", "capacity_min", "capacity_max", "topology_request"} {
		delete(found, name)
	}
	return strict(found, &api.CSIVolume{})
}

func strict(found map[string]any, into any) error {
	decoder, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		ErrorUnused: true, WeaklyTypedInput: true, TagName: "hcl", Result: into,
	})
	if err == nil {
		err = decoder.Decode(found)
	}
	return err
}

// objects fails on a key that a type does not have, and on a value of the wrong type. It prints what it knew.
func objects(path string, body []byte) error {
	for _, document := range bytes.Split(body, []byte("\n---\n")) {
		var head metav1.TypeMeta
		if err := yaml.Unmarshal(document, &head); err != nil {
			return err
		}
		name := head.APIVersion + " " + head.Kind
		if make, known := kinds[name]; known {
			if err := yaml.UnmarshalStrict(document, make()); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			fmt.Println(name)
		}
	}
	return nil
}
