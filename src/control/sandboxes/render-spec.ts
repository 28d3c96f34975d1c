import { projectSpec } from '../../domain/spec/project-spec.ts'
import type { SandboxSpec } from '../../domain/spec/spec.ts'
import { LARGE_TEXT, nextTurn } from '../../lib/next-turn.ts'

/** A specification as JSON texts: as it is stored, and as replies show it. */
export type SpecTexts = { readonly spec_json: string; readonly projection_json: string }

/**
 * Renders the whole specification for the store, and its projection for replies. A member that both have is rendered once, and a
 * large one in a turn of its own: 4 MiB take 7 to 12 ms (2026-11). So is a large text joined.
 */
export async function renderSpec(spec: SandboxSpec): Promise<SpecTexts> {
  const rendered = new Map<unknown, string>()
  const spec_json = await renderMembers(spec, rendered)
  return { spec_json, projection_json: await renderMembers(projectSpec(spec), rendered) }
}

async function renderMembers(object: object, rendered: Map<unknown, string>): Promise<string> {
  let members = ''
  for (const [key, value] of Object.entries(object)) {
    const known = rendered.get(value)
    const json: string | undefined = known ?? JSON.stringify(value)
    if (json === undefined) continue // an absent member
    if (known === undefined) {
      rendered.set(value, json)
      if (json.length > LARGE_TEXT) await nextTurn()
    }
    members += `${members === '' ? '' : ','}"${key}":${json}`
  }
  const json = `{${members}}`
  if (json.length > LARGE_TEXT) {
    await nextTurn()
    joinParts(json)
  }
  return json
}

/**
 * V8 joins the parts of a text when somebody needs its bytes, which takes 10 ms for 4 MiB. Both texts would be joined in the turn that
 * sends them to the database: of 15 s of such creates, 45 turns took more than 20 ms, and now 22 (2026-11, in turn).
 */
function joinParts(text: string): void {
  Buffer.byteLength(text)
}
