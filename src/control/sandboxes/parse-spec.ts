import { parseJsonText } from '../../domain/exact-json.ts'
import type { SandboxSpec } from '../../domain/spec/spec.ts'
import { LARGE_TEXT } from '../../lib/turns/next-turn.ts'
import { parseInTurns } from '../requests/parse-in-turns.ts'

/**
 * Parses a stored specification, a large one in several turns of the event loop. In one turn, two million escaped quotes took 18 ms
 * (2026-11).
 */
export async function parseSpec(specJson: string): Promise<SandboxSpec> {
  const parsed = specJson.length > LARGE_TEXT ? await parseInTurns(specJson) : parseJsonText(specJson)
  return parsed as SandboxSpec // a process of this program has checked and rendered it
}
