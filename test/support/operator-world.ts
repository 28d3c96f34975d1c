import assert from 'node:assert/strict'
import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { createOrg } from '../../src/control/orgs/orgs.ts'
import { createSandbox } from '../../src/control/sandboxes/create-sandbox.ts'
import type { TransitionRequest } from '../../src/control/sandboxes/transitions/transition-step.ts'
import { moveSandbox } from '../../src/control/sandboxes/transitions/transition.ts'
import { recordReport } from '../../src/control/workers/record-report.ts'
import { registerWorker } from '../../src/control/workers/worker-join.ts'
import { SYSTEM_ACTOR } from '../../src/domain/orgs/caller.ts'
import type { OrgId, SandboxId, WorkerId } from '../../src/domain/ids.ts'
import type { SandboxSpec } from '../../src/domain/spec/spec.ts'
import { makeTestControl, type TestControl } from './control.ts'
import { reportOf } from './report.ts'
import { spawnProgram } from './server.ts'
import { PLAIN_SPEC } from './spec.ts'

const never = new AbortController().signal

type Created = {
  readonly name: string
  readonly org?: OrgId
  readonly start?: boolean
  readonly spec?: Partial<SandboxSpec>
}

/** A database with sandboxes whose states a test sets, and the `sandyard` command on it. */
export type OperatorWorld = TestControl & {
  /** Runs the command and expects it to succeed. Resolves with its standard output. */
  readonly print: (...args: readonly string[]) => Promise<string>
  /** Runs the command and expects it to fail. Resolves with its standard error. */
  readonly refuse: (...args: readonly string[]) => Promise<string>
  /** Starts the command and returns its process. */
  readonly spawn: (...args: readonly string[]) => ChildProcess
  readonly addOrg: (slug: string) => Promise<OrgId>
  readonly addWorker: (name: string, vcpus: number) => Promise<WorkerId>
  readonly create: (input: Created) => Promise<SandboxId>
  /** Moves a sandbox by a transition. */
  readonly move: (id: SandboxId, change: Pick<TransitionRequest, 'event'> & Partial<TransitionRequest>) => Promise<void>
}

/** Opens the world. Always close it. */
export async function makeOperatorWorld(): Promise<OperatorWorld> {
  const control = await makeTestControl({ leavesPlacementToLoop: true })
  const { deps, caller } = control
  const dataDir = mkdtempSync(join(tmpdir(), 'sandyard-view-'))
  let reports = 0

  const spawn = (args: readonly string[]): ChildProcess =>
    spawnProgram(args, { SANDYARD_DATA_DIR: dataDir, DATABASE_URL: control.databaseUrl })

  async function sandyard(args: readonly string[]) {
    const child = spawn(args)
    assert.ok(child.stdout !== null && child.stderr !== null)
    child.stdin?.end()
    const [out, err] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'exit')])
    return { code: child.exitCode, out, err }
  }

  return {
    ...control,
    spawn: (...args) => spawn(args),
    async print(...args) {
      const { code, out, err } = await sandyard(args)
      assert.equal(code, 0, `${args.join(' ')}: ${err}`)
      return out
    },
    async refuse(...args) {
      const { code, out, err } = await sandyard(args)
      assert.notEqual(code, 0, args.join(' '))
      assert.equal(out, '', args.join(' '))
      return err
    },
    addOrg: async (slug) =>
      (await createOrg(deps, { name: slug, slug, owner: `${slug}@example.com`, plan: 'standard' })).id,
    async addWorker(name, vcpus) {
      const worker_id = await registerWorker(deps, { name, credential: `credential-of-${name}` })
      const capacity = { vcpus, memory_mib: 1_000, disk_mib: 100_000 }
      const storage = { is_shared: false, enforces_caps: true, how: 'a worker of a test' }
      await recordReport(deps, reportOf(worker_id, { seq: ++reports, capacity, storage }))
      return worker_id
    },
    async create({ name, org = caller.org_id, start = true, spec = {} }) {
      const input = { name, slug: null, registry: { mode: 'auto' }, start, waitMs: null, signal: never } as const
      const made = await createSandbox(deps, { ...caller, org_id: org }, { ...input, spec: { ...PLAIN_SPEC, ...spec } })
      return made.id
    },
    async move(id, change) {
      const cause = { actor: SYSTEM_ACTOR, code: 'placement' } as const
      const answer = await moveSandbox(deps, { sandbox_id: id, run_id: null, cause, ...change })
      assert.equal(answer.kind, 'moved', JSON.stringify(answer))
    },
    async close() {
      await control.close()
      rmSync(dataDir, { recursive: true, force: true })
    },
  }
}
