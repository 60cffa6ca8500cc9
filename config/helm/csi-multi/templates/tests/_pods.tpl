{{/* Name, labels and hook of an object of `helm test`: root, class, name, and what it is (`as`). */}}
{{- define "csi.testMetadata" -}}
name: {{ .name }}-{{ .as }}
namespace: {{ .root.Release.Namespace }}
labels: {{- include "csi.labels" .root | nindent 2 }}
  app.kubernetes.io/component: test
annotations:
  helm.sh/hook: test
  helm.sh/hook-weight: {{ .weight | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded,hook-failed
  helm.sh/hook-output-log-policy: hook-failed
{{- end -}}

{{/* A pod that runs a script with volumes mounted at /NAME. */}}
{{- define "csi.testPod" -}}
{{- $test := .root.Values.test -}}
restartPolicy: Never
serviceAccountName: {{ $test.serviceAccountName }}
automountServiceAccountToken: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
nodeSelector: {{- merge (dict "kubernetes.io/os" "linux") $test.nodeSelector | toYaml | nindent 2 }}
{{- with $test.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- toYaml $test.podSecurityContext | nindent 2 }}
containers:
  - name: test
    image: {{ $test.image | default (include "csi.image" .root.Values.image.controller) }}
    imagePullPolicy: {{ .root.Values.image.controller.pullPolicy }}
    command: [sh, -euc]
    args:
      - |
        {{- include .script . | nindent 8 }}
    securityContext: {{- include "csi.confined" . | nindent 6 }}
    resources: {{- toYaml $test.resources | nindent 6 }}
    volumeMounts:
      {{- range $name, $volume := .volumes }}
      - {name: {{ $name }}, mountPath: /{{ $name }}}
      {{- end }}
volumes:
  {{- range $name, $volume := .volumes }}
  - {{- merge (dict "name" $name) $volume | toYaml | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "csi.testWrite" -}}
dd if=/dev/urandom of=/data/bytes bs=64k count=64 2>/dev/null
cd /data && sha256sum bytes >sums && sync
echo "{{ .class }}: written: $(cat sums)"
{{- end -}}

{{- define "csi.testCompare" -}}
{{- $root := . -}}
{{- range $name, $volume := .volumes -}}
echo "{{ $root.class }}: {{ $name }}:"
(cd /{{ $name }} && sha256sum -c sums)
{{ end -}}
{{- if .volumes.restored -}}
cmp /data/bytes /restored/bytes
echo more >>/restored/bytes && sync
{{ end -}}
echo "{{ .class }}: passed"
{{- end -}}
