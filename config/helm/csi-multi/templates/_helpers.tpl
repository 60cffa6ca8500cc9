{{/* The configuration as values, to know what its backends need of pods. The ConfigMap has the text as it is. */}}
{{- define "csi.config" -}}
{{- $config := fromYaml .Values.config -}}
{{- if or (hasKey $config "Error") (not (kindIs "map" $config.driver)) (not (kindIs "map" $config.backends)) -}}
{{- fail "config: expected the driver's configuration file as text, with the sections 'driver' and 'backends'; give it with --set-file config=FILE, and try it with: csi-multi check FILE" -}}
{{- end -}}
{{- toJson $config -}}
{{- end -}}

{{/* What a driver does not take over while it runs: only a change of this replaces pods. */}}
{{- define "csi.fixed" -}}
{{- $config := include "csi.config" . | fromJson -}}
{{- omit $config.driver "default_backend" "log_level" "log_style" "check_seconds" "reload_seconds" | toJson }}{{ $config.cluster | toJson -}}
{{- end -}}

{{- define "csi.driver" -}}
{{- (include "csi.config" . | fromJson).driver.name | required "config: driver.name is required" -}}
{{- end -}}

{{- define "csi.taint" -}}
{{- default (printf "%s/starting" (include "csi.driver" .)) .Values.startupTaint.key -}}
{{- end -}}

{{- define "csi.name" -}}
{{- if contains .Chart.Name .Release.Name -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{- end -}}
{{- end -}}

{{- define "csi.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of the chart, and those of a map that do not replace them: selectors need them. */}}
{{- define "csi.labelsAnd" -}}
{{ include "csi.selector" .root }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- with omit .others "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart" }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "csi.labels" -}}
{{ include "csi.labelsAnd" (dict "root" . "others" .Values.labels) }}
{{- end -}}

{{/* Labels of the pods of a part of the chart. */}}
{{- define "csi.podLabels" -}}
{{ include "csi.labelsAnd" (dict "root" .root "others" (merge (dict) .part.podLabels .root.Values.labels)) }}
{{- end -}}

{{- define "csi.image" -}}
{{ .repository }}:{{ .tag }}{{ with .digest }}@{{ . }}{{ end }}
{{- end -}}

{{/* What the configuration needs of pods and objects, as JSON. docs/deploy.md explains each. */}}
{{- define "csi.needs" -}}
{{- $config := include "csi.config" . | fromJson -}}
{{- $cluster := $config.cluster | default dict -}}
{{- $needs := dict "hostPID" .Values.node.hostPID "ownLvm" false "rbd" false "nodeState" .Values.drain.enabled "directories" (dict) "tls" (hasKey $cluster "tls") "attach" (default false $cluster.attach_required) -}}
{{- $kinds := list -}}
{{- range $name, $backend := $config.backends -}}
{{- $kinds = append $kinds $backend.kind -}}
{{- if eq $backend.kind "loop" }}{{ $_ := set $needs.directories $backend.directory true }}{{ end -}}
{{- if eq $backend.kind "lvm" -}}
{{- if eq (default "own" $backend.namespace) "host" }}{{ $_ := set $needs "hostPID" true }}{{ else }}{{ $_ := set $needs "ownLvm" true }}{{ end -}}
{{- end -}}
{{- if and (eq $backend.kind "ebs") (has (default "imds" $backend.metadata) (list "kubernetes" "auto")) }}{{ $_ := set $needs "nodeState" true }}{{ end -}}
{{- if eq $backend.kind "rbd" -}}
{{- $_ := set $needs "rbd" true -}}
{{- if eq (default "rbd" $backend.mounter) "rbd-nbd" }}{{ $_ := set $needs "hostPID" true }}{{ end -}}
{{- if $backend.fencing }}{{ $_ := set $needs "nodeState" true }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $attached := list -}}
{{- $others := list -}}
{{- range uniq $kinds | sortAlpha -}}
{{- if has . (append $.Values.csiDriver.attachKinds "ebs") }}{{ $attached = append $attached . }}{{ else }}{{ $others = append $others . }}{{ end -}}
{{- end -}}
{{- if and $attached (not $needs.attach) -}}
{{- if $others -}}
{{- fail (printf "config: volumes of %s are attached, those of %s are not: set attach_required: true in the section 'cluster', so that all backends answer" (join ", " $attached) (join ", " $others)) -}}
{{- end -}}
{{- $_ := set $needs "attach" true -}}
{{- end -}}
{{- range uniq $kinds | sortAlpha -}}
{{- if and (has . (concat (list "loop" "lvm") $.Values.node.localKinds)) (not (or $cluster.nodes $cluster.kubernetes)) -}}
{{- fail (printf "config: volumes of %s lie on nodes, so the controller has to reach the nodes: add a section 'cluster' with 'kubernetes' (docs/deploy.md)" .) -}}
{{- end -}}
{{- end -}}
{{- with $cluster.kubernetes -}}
{{- $asked := list -}}
{{- range splitList "," (default "" .labels) }}{{ $asked = append $asked (. | nospace | replace "==" "=") }}{{ end -}}
{{- range $key, $value := $.Values.node.nodeSelector -}}
{{- $pair := printf "%s=%s" $key $value -}}
{{- if not (has $pair $asked) -}}
{{- fail (printf "config: cluster.kubernetes.labels: node.nodeSelector lets the driver run on nodes with %s only, and the controller would wait for all others: add %q" $pair $pair) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $needs.tls -}}
{{- range $key, $file := $cluster.tls -}}
{{- if ne (dir $file) "/etc/csi-multi/tls" }}{{ fail (printf "config: cluster.tls.%s: Secrets of this chart are in /etc/csi-multi/tls: ca.crt, tls.crt, tls.key" $key) }}{{ end -}}
{{- end -}}
{{- if contains "{node}" (default "{node}" $cluster.node_identity) -}}
{{- fail "config: cluster.node_identity: all nodes share one Secret, so give one name without {node}, for example node.csi-multi" -}}
{{- end -}}
{{- end -}}
{{- toJson $needs -}}
{{- end -}}

{{/* Arguments that all controller sidecars have. */}}
{{- define "csi.sidecarArgs" -}}
- --csi-address=/csi/csi.sock
- --v={{ .Values.sidecars.logLevel }}
- --timeout={{ .Values.sidecars.timeoutSeconds }}s
- --leader-election
- --leader-election-namespace=$(NAMESPACE)
- --kube-api-qps={{ .Values.sidecars.kubeApiQps }}
- --kube-api-burst={{ .Values.sidecars.kubeApiBurst }}
{{- end -}}

{{- define "csi.sidecarEnv" -}}
{{ include "csi.namespaceEnv" . }}
{{- with .Values.sidecars.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "csi.namespaceEnv" -}}
- name: NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
{{- end -}}

{{- define "csi.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* A VolumeSnapshotClass or VolumeGroupSnapshotClass, of `class` in the values. */}}
{{- define "csi.snapshotClass" -}}
apiVersion: {{ .group }}/v1
kind: {{ .kind }}
metadata:
  name: {{ .class.name }}
  labels: {{- include "csi.labels" .root | nindent 4 }}
  {{- if .class.default }}
  annotations: {{ dict (printf "%s/is-default-class" .default) "true" | toJson }}
  {{- end }}
driver: {{ include "csi.driver" .root }}
deletionPolicy: {{ .class.deletionPolicy | default "Delete" }}
{{- with .class.parameters }}
parameters: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Refuse a sidecar of this key in the values that calls alpha RPCs of a driver which does not serve them. */}}
{{- define "csi.requireAlpha" -}}
{{- if not (include "csi.config" .root | fromJson).driver.alpha -}}
{{- fail (printf "sidecars.%s.enabled: what it calls is alpha in CSI 1.13; set driver.alpha: true in config" .sidecar) -}}
{{- end -}}
{{- end -}}

{{/* The name of the service that backup programs call, and of its objects. */}}
{{- define "csi.metadataName" -}}
{{ include "csi.name" . }}-snapshot-metadata
{{- end -}}
