import { renderList } from '../../domain/json-text.ts'
import { projectSpec } from '../../domain/spec/project-spec.ts'
import type { SandboxSpec } from '../../domain/spec/spec.ts'
import { eachInTurns, encodeInTurns, LARGE_TEXT, nextTurn, textPieces } from '../../lib/turns/next-turn.ts'

/** A specification as JSON texts: as it is stored, and as replies show it. */
export type SpecTexts = {
  readonly spec_json: string
  readonly projection_json: string
  /** The parts of a large specification that statements of the store read (`SPEC_PARTS`). Null: it is not large. */
  readonly parts_json: string | null
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
  if (spec_json.length <= LARGE_TEXT) return { spec_json, projection_json, parts_json: null, encoded: null }
  const encoded = { spec: await encodeInTurns(spec_json), projection: await encodeInTurns(projection_json) }
  const { image, mounts, network } = spec
  const parts_json = JSON.stringify({ image, mounts, network: { ports: network.ports } })
  return { spec_json, projection_json, parts_json, encoded }
}

async function renderMembers(object: object, rendered: Map<unknown, string>): Promise<string> {
  let members = ''
  for (const [key, value] of Object.entries(object)) {
    const known = rendered.get(value)
    const json: string | undefined =
      known ?? (isLongList(value) || hasLongText(value) ? await renderInTurns(value) : JSON.stringify(value))
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

/** A loop, because `Object.values` took 2 us of each create (2026-11). */
function hasLongText(value: unknown): boolean {
  if (typeof value === 'string') return value.length > LARGE_TEXT
  if (typeof value !== 'object' || value === null) return false
  const members: Readonly<Record<string, unknown>> = value as Record<string, unknown> // any object has members
  for (const key in members) if (hasLongText(members[key])) return true
  return false
}

/** The JSON text of a value with a long list or a long text, which are rendered in turns of their own. */
async function renderInTurns(value: unknown): Promise<string> {
  if (typeof value === 'string') return renderLongText(value)
  if (Array.isArray(value)) return renderLongList(value)
  const members: string[] = []
  for (const [key, member] of Object.entries(Object(value))) {
    const json: string | undefined = hasLongText(member) ? await renderInTurns(member) : JSON.stringify(member)
    if (json !== undefined) members.push(`${JSON.stringify(key)}:${json}`)
  }
  return `{${members.join(',')}}`
}

async function renderLongList(list: readonly unknown[]): Promise<string> {
  const parts: string[] = []
  for (let at = 0; at < list.length; at += ITEMS_AT_ONCE) {
    const items = list.slice(at, at + ITEMS_AT_ONCE)
    if (!items.some(hasLongText)) parts.push(JSON.stringify(items).slice(1, -1))
    else for (const item of items) parts.push(hasLongText(item) ? await renderInTurns(item) : JSON.stringify(item))
    await nextTurn()
  }
  return renderList(parts)
}

/** A file of two million bytes is a text of 2.7 MB, which took 8 to 10 ms (2026-11). */
async function renderLongText(text: string): Promise<string> {
  let json = ''
  await nextTurn()
  await eachInTurns(textPieces(text), (piece) => void (json += JSON.stringify(piece).slice(1, -1)))
  return `"${json}"`
}
