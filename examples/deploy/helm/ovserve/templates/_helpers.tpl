{{- define "ovserve.name" -}}
{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- define "ovserve.selector" -}}
app.kubernetes.io/name: ovserve
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "ovserve.meta" -}}
name: {{ include "ovserve.name" . }}
labels:
  {{- include "ovserve.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "ovserve.scaling" -}}
scaleUp: {stabilizationWindowSeconds: 0}
# A pod takes its prefix cache with it.
scaleDown:
  stabilizationWindowSeconds: 300
  policies:
    - {type: Pods, value: 1, periodSeconds: 60}
{{- end }}
