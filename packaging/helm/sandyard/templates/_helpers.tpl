{{- define "sandyard.labels" -}}
app.kubernetes.io/name: sandyard
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "sandyard.selector" -}}
app.kubernetes.io/name: sandyard
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sandyard.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "sandyard.secret" -}}
{{ .Values.secret | default (printf "%s-keys" .Release.Name) }}
{{- end }}

{{- define "sandyard.databaseSecret" -}}
{{- if .Values.database.cloudnativepg.enabled -}}
{{ .Release.Name }}-database-app
{{- else -}}
{{ required "database.secret: name a Secret with the key DATABASE_URL, or set database.cloudnativepg.enabled" .Values.database.secret }}
{{- end -}}
{{- end }}

{{- /* The variables of a map, sorted by name. */ -}}
{{- define "sandyard.env" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
