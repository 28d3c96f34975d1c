import { appendFileSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'

/** The chapters of `docs/security-report.md`, by what the attacker aims at. */
export const TARGETS = {
  host: 'The host and its resources',
  neighbours: 'Other sandboxes and other organizations',
  network: 'The network',
  images: 'Images and registries',
  volumes: 'Volumes and disks',
  workers: 'Workers and the links between machines',
  'control-plane': 'The control plane, its database and its secrets',
} as const

type AttackFacts = {
  readonly target: keyof typeof TARGETS
  /** What the attacker holds at the start, such as `root in a sandbox` or `a local account of the host`. */
  readonly attacker: string
  /** The number of the finding in the first attack's report that this attack repeats. Null if it is a new attack. */
  readonly finding: number | null
  /** Why the attack can't be tried on this machine. Null or absent if it can. */
  readonly skip?: string | null
}

/** What an attack did. Both come from the attack's own counting, so that the report states only what happened. */
type AttackResult = {
  /** How many times the attacker tried. At least 1. */
  readonly tries: number
  /** What was measured, in one sentence with figures, such as `the owner and mode of 11 device nodes stayed the same`. */
  readonly outcome: string
}

/** One row of the report. The runtime is the OCI runtime under test; null if the attack involves none. */
export type AttackRecord = AttackFacts &
  Partial<AttackResult> & { readonly name: string; readonly runtime: string | null; readonly isHeld: boolean | null }

/** The variable with the folder for the records of a run. Without it, nothing is recorded. */
export const RECORDS_VARIABLE = 'SANDYARD_ATTACK_RECORDS'

/**
 * Defines a test that attacks the system. The test passes if the attack fails. `run` performs the attack and rejects if the
 * attacker gets anything. The name says what the attacker attempts, such as `makes /dev/null of the host unusable`.
 */
export function attack(name: string, facts: AttackFacts, run: (t: TestContext) => Promise<AttackResult>): void {
  const skip = facts.skip ?? null
  if (skip !== null) record({ ...facts, name, runtime: testedRuntime(), isHeld: null })
  test(`attack: ${name}`, { skip: skip ?? false }, async (t) => {
    try {
      const result = await run(t)
      if (!(result.tries >= 1)) throw new Error('an attack that was never tried proves nothing')
      record({ ...facts, ...result, name, runtime: testedRuntime(), isHeld: true })
    } catch (error) {
      record({ ...facts, name, runtime: testedRuntime(), isHeld: false })
      throw error
    }
  })
}

function testedRuntime(): string | null {
  return process.env['SANDYARD_TEST_RUNTIME'] ?? null
}

function record(row: AttackRecord): void {
  const folder = process.env[RECORDS_VARIABLE]
  if (folder === undefined || folder === '') return
  mkdirSync(folder, { recursive: true })
  appendFileSync(join(folder, `${String(process.pid)}.jsonl`), `${JSON.stringify(row)}\n`)
}
