{{- define "orderpost.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The release's name, and the chart's unless the first contains it. With a role appended, at most 63 characters. */}}
{{- define "orderpost.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 46 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 46 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 46 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "orderpost.selectorLabels" -}}
app.kubernetes.io/name: {{ include "orderpost.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "orderpost.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "orderpost.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "orderpost.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "orderpost.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "orderpost.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* A setting as text. Helm reads numbers as floats, and would write 1000000 as 1e+06. */}}
{{- define "orderpost.setting" -}}
{{- if kindIs "float64" . }}{{ printf "%.15g" . | quote }}{{ else }}{{ . | toString | quote }}{{ end }}
{{- end }}

{{/* The least number of replicas of a role. */}}
{{- define "orderpost.replicas" -}}
{{- if and (ne .root.Values.autoscaling.kind "none") .role.autoscaling }}{{ .role.autoscaling.minReplicas }}{{ else }}{{ .role.replicas }}{{ end }}
{{- end }}

{{/* Refuse values that would install and then fail. */}}
{{- define "orderpost.check" -}}
{{- $connect := .Values.settings.EMAIL_CONNECT_TIMEOUT | default 3 | float64 }}
{{- $flight := addf $connect (.Values.settings.EMAIL_READ_TIMEOUT | default 10 | float64) }}
{{- range $name, $role := .Values.roles }}
{{- $grace := (mergeOverwrite (deepCopy $.Values.defaults) $role).terminationGracePeriodSeconds | float64 }}
{{- if le $grace $flight }}
{{- fail (printf "roles.%s: terminationGracePeriodSeconds (%g) must be longer than EMAIL_CONNECT_TIMEOUT + EMAIL_READ_TIMEOUT (%g), or a stop leaves sends without an outcome." $name $grace $flight) }}
{{- end }}
{{- end }}
{{- if .Values.ingress.enabled }}
{{- $hosts := .Values.settings.ALLOWED_HOSTS | default "" | nospace | splitList "," }}
{{- if not (or (has .Values.ingress.host $hosts) (has "*" $hosts)) }}
{{- fail (printf "ingress.host (%s) is not in settings.ALLOWED_HOSTS, so every request would be answered with 400." .Values.ingress.host) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Not empty if the archive is in a bucket instead of a volume. */}}
{{- define "orderpost.bucket" -}}
{{- if hasPrefix "s3://" (.Values.settings.ARCHIVE_URL | default "") }}s3{{ end }}
{{- end }}
