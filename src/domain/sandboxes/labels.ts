import { LABELS_MAX, LABEL_KEY_MAX_BYTES, LABEL_VALUE_MAX_BYTES } from '../requests/request-bounds.ts'
import { parseJsonText } from '../exact-json.ts'
import { ISOLATION_LABEL, ISOLATION_LEVELS, isIsolationLevel } from '../isolation.ts'
import { DISK_LABEL, DISK_OF_RUN } from './disk-label.ts'
import { isRestartPolicy, RESTART_LABEL, RESTART_POLICIES } from './restart.ts'
import { isSchedule, SCHEDULE_RULE, SNAPSHOT_LABEL } from './snapshot-schedule.ts'
import { isSshLabelValue, SSH_LABEL_VALUES, SSH_LABELS } from './ssh-labels.ts'
import { byteLength, isPlainText } from '../names.ts'
import { describeSeen, type Refusal } from '../refusal.ts'

/** Prefixes of label keys that only the service may set. */
export const RESERVED_LABEL_PREFIXES = ['sandbox.', 'microsandbox.', 'service.'] as const

/**
 * Checks labels that a request attaches to an object. Returns the refusal of the first invalid label, or null. `field`
 * is the path of the labels in the request.
 */
export function findLabelRefusal(labels: Readonly<Record<string, string>>, field: string): Refusal | null {
  const keys = Object.keys(labels)
  if (keys.length > LABELS_MAX) return refusal(field, `${String(keys.length)} labels`, `at most ${String(LABELS_MAX)}`)
  for (const key of keys) {
    const value = labels[key] ?? ''
    const at = `${field}.${key}`
    const refusal = refuseKey(key, field) ?? refuseValue(value, at) ?? refuseSetting(key, value, at)
    if (refusal !== null) return refusal
  }
  return null
}

/** Prefix of the labels that change what the service does. The table below has them all. */
const SETTING_PREFIX = 'sandyard.'

type LabelRule = { readonly isValid: (value: string) => boolean; readonly accepted: string }

const SSH_RULE: LabelRule = { isValid: isSshLabelValue, accepted: SSH_LABEL_VALUES.join(', ') }

const SETTING_LABELS: Readonly<Record<string, LabelRule>> = {
  [ISOLATION_LABEL]: { isValid: isIsolationLevel, accepted: ISOLATION_LEVELS.join(', ') },
  [RESTART_LABEL]: { isValid: isRestartPolicy, accepted: RESTART_POLICIES.join(', ') },
  [SNAPSHOT_LABEL]: { isValid: isSchedule, accepted: SCHEDULE_RULE },
  [DISK_LABEL]: { isValid: (value) => value === DISK_OF_RUN, accepted: DISK_OF_RUN },
  [SSH_LABELS.start]: SSH_RULE,
  [SSH_LABELS.agent]: SSH_RULE,
}

/** An unknown label with the prefix is refused, because a misspelled `sandyard.isolation` would ask for nothing. */
function refuseSetting(key: string, value: string, field: string): Refusal | null {
  if (!key.startsWith(SETTING_PREFIX)) return null
  const rule = Object.hasOwn(SETTING_LABELS, key) ? SETTING_LABELS[key] : undefined
  if (rule === undefined) return refusal(field, 'an unknown label', `one of ${Object.keys(SETTING_LABELS).join(', ')}`)
  return rule.isValid(value) ? null : refusal(field, describeSeen(value), rule.accepted)
}

/**
 * Parses the `labels` parameter of a list: a JSON object of strings. The list contains only sandboxes that have all
 * these labels. Keys with a reserved prefix are allowed here.
 */
export function parseLabelFilter(
  text: string,
): { readonly labels: Record<string, string> } | { readonly refusal: Refusal } {
  const accepted = 'a JSON object of strings, such as {"team":"ml"}'
  const parsed = parseJson(text)
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) {
    return { refusal: refusal('query.labels', describeSeen(text), accepted) }
  }
  const labels: [string, string][] = []
  for (const [key, value] of Object.entries(parsed)) {
    if (typeof value !== 'string') return { refusal: refusal(`query.labels.${key}`, describeSeen(value), 'a string') }
    if (!isPlainText(key) || !isPlainText(value)) {
      return { refusal: refusal('query.labels', describeSeen(text), 'text without control characters') }
    }
    labels.push([key, value])
  }
  if (labels.length > LABELS_MAX) {
    return { refusal: refusal('query.labels', `${String(labels.length)} labels`, `at most ${String(LABELS_MAX)}`) }
  }
  return { labels: Object.fromEntries(labels) }
}

function refuseKey(key: string, field: string): Refusal | null {
  const reserved = RESERVED_LABEL_PREFIXES.find((prefix) => key.startsWith(prefix))
  if (reserved !== undefined)
    return refusal(`${field}.${key}`, `the reserved prefix ${reserved}`, 'keys without a reserved prefix')
  if (key !== '' && byteLength(key) <= LABEL_KEY_MAX_BYTES && isPlainText(key)) return null
  const rule = `keys of 1 to ${String(LABEL_KEY_MAX_BYTES)} bytes without control characters`
  return refusal(field, `the key ${describeSeen(key)}`, rule)
}

function refuseValue(value: string, field: string): Refusal | null {
  if (byteLength(value) <= LABEL_VALUE_MAX_BYTES && isPlainText(value)) return null
  const rule = `values of at most ${String(LABEL_VALUE_MAX_BYTES)} bytes without control characters`
  return refusal(field, describeSeen(value), rule)
}

function refusal(field: string, seen: string, accepted: string): Refusal {
  return { code: 'invalid_request', field, seen, accepted }
}

function parseJson(text: string): unknown {
  try {
    return parseJsonText(text)
  } catch {
    return undefined // the caller refuses it
  }
}
