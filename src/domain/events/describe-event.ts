import type { Actor } from '../orgs/caller.ts'

/** Describes who caused an event. */
export function describeActor(actor: Actor): string {
  switch (actor.kind) {
    case 'user':
      return `user ${actor.label}`
    case 'api_key':
      return `API key '${actor.name}'`
    case 'system':
      return actor.label
    case 'ssh_key':
      return `SSH key ${actor.label ?? actor.fingerprint}`
  }
}

/** Describes the payload of an event as `name=value` pairs, without the fields that are only ids. */
export function describeFacts(payload: unknown): string {
  if (typeof payload !== 'object' || payload === null) return ''
  const facts = Object.entries(payload).filter(([name, value]) => !name.endsWith('_id') && value !== null)
  return facts.map(([name, value]) => `${name}=${formatValue(value)}`).join(' ')
}

function formatValue(value: unknown): string {
  return typeof value === 'string' && /^[^\s"=]+$/.test(value) ? value : JSON.stringify(value)
}
