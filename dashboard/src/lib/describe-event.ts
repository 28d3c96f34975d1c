import type { AuditEvent } from './types.ts'

/** Who caused an event, as a text. */
export function describeActor(actor: AuditEvent['actor']): string {
  if (actor.kind === 'user') return `${actor.label} (${actor.redacted_email})`
  if (actor.kind === 'api_key') return `key ${actor.name}`
  if (actor.kind === 'ssh_key') return `SSH key ${actor.label ?? actor.fingerprint}`
  return actor.label
}

export function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** A text of an event's payload, or null. */
export function textOf(payload: unknown, name: string): string | null {
  const value = isRecord(payload) ? payload[name] : null
  return typeof value === 'string' && value !== '' ? value : null
}
