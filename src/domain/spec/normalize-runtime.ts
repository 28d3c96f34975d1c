import { snakeCase } from '../casing.ts'
import { GUEST_PATH_RULE, normalizeGuestPath } from './guest-path.ts'
import { FILE_NAME_MAX_BYTES, HOSTNAME_MAX_BYTES } from '../requests/request-bounds.ts'
import { byteLength, isPlainText } from '../names.ts'
import { describeSeen, type Refuse } from '../refusal.ts'
import {
  RLIMIT_RESOURCES,
  SANDBOX_LOG_LEVELS,
  type EnvVar,
  type HandoffInit,
  type Rlimit,
  type RuntimeOptions,
} from './spec.ts'
import type { InitInput, RlimitInput, RuntimeInput } from './spec-input.ts'

/** Fills in the defaults of runtime options. An empty shell, user, hostname or working directory counts as absent. */
export function normalizeRuntime(input: RuntimeInput, refuse: Refuse): RuntimeOptions {
  const scripts = input.scripts ?? {}
  for (const name of Object.keys(scripts)) {
    if (!isFileName(name)) refuseField(refuse, 'runtime.scripts', `the name ${describeSeen(name)}`, SCRIPT_NAME_RULE)
  }
  return {
    cmd: input.cmd ?? null,
    entrypoint: input.entrypoint ?? null,
    hostname: normalizeHostname(input.hostname ?? '', refuse),
    log_level:
      input.log_level === undefined || input.log_level === null ? null : snakeCase(SANDBOX_LOG_LEVELS, input.log_level),
    metrics_sample_interval_ms:
      input.metrics_sample_interval_ms === undefined ? 1000 : input.metrics_sample_interval_ms,
    disable_metrics_sample: input.disable_metrics_sample ?? false,
    scripts,
    shell: plainOrNull(input.shell ?? '', 'runtime.shell', refuse),
    user: plainOrNull(input.user ?? '', 'runtime.user', refuse),
    workdir: normalizeWorkdir(input.workdir ?? '', refuse),
  }
}

/**
 * Checks environment variables and keeps their order. If two have the same key, the later variable overrides the
 * earlier one.
 */
export function normalizeEnv(env: readonly EnvVar[], field: string, refuse: Refuse): readonly EnvVar[] {
  env.forEach(({ key }, index) => {
    if (isEnvKey(key)) return
    refuseField(refuse, `${field}[${String(index)}].key`, describeSeen(key), ENV_KEY_RULE)
  })
  return env.map(({ key, value }) => ({ key, value }))
}

/** Checks resource limits and keeps their order. Refuses a soft limit above its hard limit, as the kernel does. */
export function normalizeRlimits(rlimits: readonly RlimitInput[], refuse: Refuse): readonly Rlimit[] {
  const seen = new Set<string>()
  return rlimits.map((input, index) => {
    const resource = snakeCase(RLIMIT_RESOURCES, input.resource)
    const at = `rlimits[${String(index)}]`
    if (input.soft > input.hard)
      refuseField(refuse, `${at}.soft`, String(input.soft), `at most hard, ${String(input.hard)}`)
    if (seen.has(resource))
      refuseField(refuse, `${at}.resource`, `${resource} a second time`, 'one limit for each resource')
    seen.add(resource)
    return { resource, soft: input.soft, hard: input.hard }
  })
}

/** Fills in the defaults of the program that becomes process 1. The program is an absolute path, or `auto`. */
export function normalizeInit(input: InitInput | null, refuse: Refuse): HandoffInit | null {
  if (input === null) return null
  if (input.cmd !== 'auto' && normalizeGuestPath(input.cmd) === null) {
    refuseField(refuse, 'init.cmd', describeSeen(input.cmd), `"auto", or ${GUEST_PATH_RULE}`)
  }
  const env = input.env ?? []
  env.forEach(([key], index) => {
    if (!isEnvKey(key)) refuseField(refuse, `init.env[${String(index)}][0]`, describeSeen(key), ENV_KEY_RULE)
  })
  return { cmd: input.cmd, args: input.args ?? [], env }
}

const ENV_KEY_RULE = 'the name of a variable, without = and NUL'
const SCRIPT_NAME_RULE = `file names of at most ${String(FILE_NAME_MAX_BYTES)} bytes without / and control characters`
const HOSTNAME_RULE = `at most ${String(HOSTNAME_MAX_BYTES)} letters, digits, dots and hyphens, beginning and ending with a letter or digit`
const HOSTNAME_SHAPE = /^[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?$/

function isEnvKey(key: string): boolean {
  return key !== '' && !key.includes('=') && !key.includes('\0')
}

function isFileName(name: string): boolean {
  return (
    name !== '' &&
    name !== '.' &&
    name !== '..' &&
    !name.includes('/') &&
    isPlainText(name) &&
    byteLength(name) <= FILE_NAME_MAX_BYTES
  )
}

function normalizeHostname(hostname: string, refuse: Refuse): string | null {
  if (hostname === '') return null
  if (hostname.length > HOSTNAME_MAX_BYTES || !HOSTNAME_SHAPE.test(hostname)) {
    refuseField(refuse, 'runtime.hostname', describeSeen(hostname), HOSTNAME_RULE)
  }
  return hostname
}

function normalizeWorkdir(workdir: string, refuse: Refuse): string | null {
  if (workdir === '') return null
  const path = normalizeGuestPath(workdir)
  if (path === null) refuseField(refuse, 'runtime.workdir', describeSeen(workdir), GUEST_PATH_RULE)
  return path
}

function plainOrNull(text: string, field: string, refuse: Refuse): string | null {
  if (!isPlainText(text)) refuseField(refuse, field, describeSeen(text), 'text without control characters')
  return text === '' ? null : text
}

function refuseField(refuse: Refuse, field: string, seen: string, accepted: string): void {
  refuse({ code: 'invalid_request', field, seen, accepted })
}
