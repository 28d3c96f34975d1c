import { renderList } from '../../domain/json-text.ts'
import { projectSpec } from '../../domain/spec/project-spec.ts'
import type { SandboxSpec } from '../../domain/spec/spec.ts'
import { encodeInTurns, LARGE_TEXT, nextTurn } from '../../lib/next-turn.ts'

/** A specification as JSON texts: as it is stored, and as replies show it. */
export type SpecTexts = {
  readonly spec_json: string
  readonly projection_json: string
  /** Both in UTF-8, as the database gets them, if they are large. */
  readonly encoded: { readonly spec: readonly Buffer[]; readonly projection: readonly Buffer[] } | null
}

/** How many items of a list are rendered in one turn of the event loop. 4,000 variables of 1 KB took 12 to 27 ms (2026-11). */
const ITEMS_AT_ONCE = 1_000

/**
 * Renders the whole specification for the store, and its projection for replies. A member that both have is rendered once. Large texts
 * are rendered and encoded in several turns of the event loop: 4 MiB took 5 to 10 ms each (2026-11).
 */
export async function renderSpec(spec: SandboxSpec): Promise<SpecTexts> {
  const rendered = new Map<unknown, string>()
  const spec_json = await renderMembers(spec, rendered)
  const projection_json = await renderMembers(projectSpec(spec), rendered)
  if (spec_json.length <= LARGE_TEXT) return { spec_json, projection_json, encoded: null }
  const encoded = { spec: await encodeInTurns(spec_json), projection: await encodeInTurns(projection_json) }
  return { spec_json, projection_json, encoded }
}

async function renderMembers(object: object, rendered: Map<unknown, string>): Promise<string> {
  let members = ''
  for (const [key, value] of Object.entries(object)) {
    const known = rendered.get(value)
    const json: string | undefined = known ?? (isLongList(value) ? await renderLongList(value) : JSON.stringify(value))
    if (json === undefined) continue // an absent member
    if (known === undefined) {
      rendered.set(value, json)
      if (json.length > LARGE_TEXT) await nextTurn()
    }
    members += `${members === '' ? '' : ','}"${key}":${json}`
  }
  return `{${members}}`
}

function isLongList(value: unknown): value is readonly unknown[] {
  return Array.isArray(value) && value.length > ITEMS_AT_ONCE
}

async function renderLongList(items: readonly unknown[]): Promise<string> {
  const parts: string[] = []
  for (let at = 0; at < items.length; at += ITEMS_AT_ONCE) {
    parts.push(JSON.stringify(items.slice(at, at + ITEMS_AT_ONCE)).slice(1, -1))
    await nextTurn()
  }
  return renderList(parts)
}
