import { projectSpec } from '../../domain/spec/project-spec.ts'
import type { SandboxSpec } from '../../domain/spec/spec.ts'
import { LARGE_TEXT, nextTurn } from '../../lib/next-turn.ts'

/** A specification as JSON texts: as it is stored, and as replies show it. */
export type SpecTexts = { readonly spec_json: string; readonly projection_json: string }

/**
 * Renders the whole specification for the store, and its projection for replies. Large texts are rendered in turns of their own: one
 * of 4 MiB takes 7 to 12 ms (2026-11).
 */
export async function renderSpec(spec: SandboxSpec): Promise<SpecTexts> {
  const spec_json = JSON.stringify(spec)
  const isLarge = spec_json.length > LARGE_TEXT
  if (isLarge) await nextTurn()
  const projection_json = JSON.stringify(projectSpec(spec))
  if (isLarge) await nextTurn()
  return { spec_json, projection_json }
}
