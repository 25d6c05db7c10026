{{/* The environment of a role: its own settings, files of secrets, and variables derived from other values.
     `migrates` sets DATABASE_URL to the owner's URL. */}}
{{- define "orderpost.env" -}}
{{- $owner := .root.Values.secrets.owner.name -}}
- {name: HEALTH_DIR, value: /tmp/health}
- {name: METRICS_PORT, value: {{ .root.Values.metrics.port | quote }}}
{{- if and .role.archive (not (include "orderpost.bucket" .root)) }}
- {name: ARCHIVE_URL, value: "file:///archive"}
{{- end }}
{{- range .root.Values.secrets.keys }}
{{- if not (and $.migrates $owner (eq . "DATABASE_URL")) }}
- {name: {{ . }}_FILE, value: /run/secrets/orderpost/{{ . }}}
{{- end }}
{{- end }}
{{- if and .migrates $owner }}
- {name: DATABASE_URL_FILE, value: /run/secrets/owner/url}
{{- else if and .role.owner $owner }}
- {name: PARTITION_DATABASE_URL_FILE, value: /run/secrets/owner/url}
{{- end }}
{{- range $name, $value := .role.settings }}
- {name: {{ $name }}, value: {{ include "orderpost.setting" $value }}}
{{- end }}
{{- with .role.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "orderpost.volumes" -}}
- name: tmp
  emptyDir: {{- toYaml .role.tmp | nindent 4 }}
- name: secrets
  secret:
    secretName: {{ .root.Values.secrets.name }}
    defaultMode: 0440
    items:
      {{- range .root.Values.secrets.keys }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- if and .role.owner .root.Values.secrets.owner.name }}
- name: owner
  secret:
    secretName: {{ .root.Values.secrets.owner.name }}
    defaultMode: 0440
    items: [{key: {{ .root.Values.secrets.owner.key }}, path: url}]
{{- end }}
{{- if and .role.archive (not (include "orderpost.bucket" .root)) }}
- name: archive
  persistentVolumeClaim: {claimName: {{ .root.Values.archive.existingClaim | default (printf "%s-archive" (include "orderpost.fullname" .root)) }}}
{{- end }}
{{- with .role.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "orderpost.volumeMounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: secrets, mountPath: /run/secrets/orderpost, readOnly: true}
{{- if and .role.owner .root.Values.secrets.owner.name }}
- {name: owner, mountPath: /run/secrets/owner, readOnly: true}
{{- end }}
{{- if and .role.archive (not (include "orderpost.bucket" .root)) }}
- {name: archive, mountPath: /archive}
{{- end }}
{{- with .role.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* `manage.py health` queries no other server and needs no request thread, so an outage restarts no pod.
     Over HTTP a probe would wait behind the requests that wait for a frozen PostgreSQL. */}}
{{- define "orderpost.probes" -}}
{{- $command := printf "[python, manage.py, health, %s]" (.role.health | default .name) }}
startupProbe:
  exec: {command: {{ $command }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 24
livenessProbe:
  exec: {command: {{ $command }}}
  periodSeconds: 30
  timeoutSeconds: 10
{{- if .role.http }}
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 10
  timeoutSeconds: 6   # while PostgreSQL is frozen, it answers within 5 s
{{- end }}
{{- end }}

{{/* The pod of a role, for a Deployment or (with `scheduled`) for a CronJob. */}}
{{- define "orderpost.pod" -}}
metadata:
  labels:
    {{- include "orderpost.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .name }}
    {{- with .role.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/config: {{ include (print .root.Template.BasePath "/configmap.yaml") .root | sha256sum }}
    {{- with .role.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "orderpost.serviceAccountName" .root }}
  automountServiceAccountToken: false
  enableServiceLinks: false   # a Service called `metrics` would set METRICS_PORT
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext: {{- toYaml .root.Values.podSecurityContext | nindent 4 }}
  terminationGracePeriodSeconds: {{ .role.terminationGracePeriodSeconds }}
  {{- with .role.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- if .scheduled }}
  restartPolicy: Never
  {{- end }}
  containers:
    - name: {{ .name }}
      image: {{ include "orderpost.image" .root | quote }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      args: {{- toYaml (.scheduled | ternary (concat .role.args .role.scheduledArgs) .role.args) | nindent 8 }}
      envFrom:
        - configMapRef: {name: {{ include "orderpost.fullname" .root }}}
      env: {{- include "orderpost.env" . | nindent 8 }}
      {{- if not .scheduled }}
      ports:
        - {name: metrics, containerPort: {{ .root.Values.metrics.port }}}
        {{- if .role.http }}
        - {name: http, containerPort: 8000}
        {{- end }}
      {{- include "orderpost.probes" . | nindent 6 }}
      {{- end }}
      {{- if .role.http }}
      lifecycle:
        preStop: {sleep: {seconds: 5}}   # until proxies stop sending requests to this pod
      {{- end }}
      securityContext: {{- toYaml .root.Values.securityContext | nindent 8 }}
      resources: {{- toYaml .role.resources | nindent 8 }}
      volumeMounts: {{- include "orderpost.volumeMounts" . | nindent 8 }}
  volumes: {{- include "orderpost.volumes" . | nindent 4 }}
  {{- with .role.topologySpread }}
  topologySpreadConstraints:
    {{- range . }}
    - topologyKey: {{ . }}
      maxSkew: 1
      whenUnsatisfiable: ScheduleAnyway
      {{- if not $.scheduled }}
      matchLabelKeys: [pod-template-hash]   # count no pod that an upgrade replaces
      {{- end }}
      labelSelector:
        matchLabels:
          {{- include "orderpost.selectorLabels" $.root | nindent 10 }}
          app.kubernetes.io/component: {{ $.name }}
    {{- end }}
  {{- end }}
  {{- with .role.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .role.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .role.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
