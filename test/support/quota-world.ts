import { createSandbox } from '../../src/control/sandboxes/create-sandbox.ts'
import type { ControlDeps } from '../../src/control/make-deps.ts'
import { makeControlDeps } from '../../src/control/make-deps.ts'
import { setQuota } from '../../src/control/orgs/quotas.ts'
import { OPERATOR_ACTOR, type Caller } from '../../src/domain/orgs/caller.ts'
import type { SetLimits } from '../../src/domain/orgs/plan.ts'
import { Problem } from '../../src/domain/problem.ts'
import { isLimitName } from '../../src/domain/orgs/quota.ts'
import type { Sandbox } from '../../src/domain/sandboxes/sandbox.ts'
import { openDatabase } from '../../src/store/postgres/database.ts'
import type { TestControl } from './control.ts'
import { addOrg } from './orgs.ts'
import { PLAIN_SPEC } from './spec.ts'

const never = new AbortController().signal

/** Properties of a test's sandbox that differ from the default. */
export type SandboxOptions = {
  readonly start?: boolean
  readonly name?: string
  readonly ephemeral?: boolean
  readonly vcpus?: number
  readonly memory_mib?: number
  readonly disk_size_mib?: number
  readonly max_duration_secs?: number
  readonly traceParent?: string
}

/** Creates a sandbox and starts it, unless the options say otherwise. */
export function createTestSandbox(deps: ControlDeps, caller: Caller, wish: SandboxOptions = {}): Promise<Sandbox> {
  const { resources, lifecycle } = PLAIN_SPEC
  const { start = true, name = null, ephemeral = false, max_duration_secs = null, traceParent = null } = wish
  const { vcpus = resources.vcpus, memory_mib = resources.memory_mib, disk_size_mib = null } = wish
  const spec = {
    ...PLAIN_SPEC,
    resources: { vcpus, memory_mib, disk_size_mib },
    lifecycle: { ...lifecycle, ephemeral, max_duration_secs },
  }
  const registry = { mode: 'auto' } as const
  return createSandbox(deps, caller, {
    spec,
    name,
    slug: null,
    registry,
    start,
    waitMs: null,
    signal: never,
    traceParent,
  })
}

/** Creates an organization with these limits. Resolves with a caller of it. */
export async function addLimitedOrg(deps: ControlDeps, slug: string, limits: SetLimits): Promise<Caller> {
  const caller = await addOrg(deps, slug)
  await setLimits(deps, caller, limits)
  return caller
}

/** Sets limits of an organization. */
export async function setLimits(deps: ControlDeps, { org_id }: Caller, limits: SetLimits): Promise<void> {
  for (const [name, value] of Object.entries(limits))
    if (isLimitName(name)) await setQuota(deps, { org_id, actor: OPERATOR_ACTOR }, { limit: name, value })
}

/** Opens the dependencies of a second server process on the same database. */
export async function openSecondProcess(
  control: TestControl,
): Promise<{ readonly deps: ControlDeps } & AsyncDisposable> {
  const { deps, databaseUrl } = control
  const pools = { tenantPoolSize: 6, systemPoolSize: 6, statementTimeoutMs: 20_000 }
  const db = await openDatabase({ connectionString: databaseUrl, ...pools, log: deps.log })
  return { deps: makeControlDeps({ ...deps, db }), [Symbol.asyncDispose]: () => db.close() }
}

/** Resolves with the refusal, or with null if there was none. Rejects with any other error. */
export async function refusalOf(work: Promise<unknown>): Promise<Problem | null> {
  try {
    await work
    return null
  } catch (error) {
    if (error instanceof Problem) return error
    throw error
  }
}
