import type { SandboxId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import type { SpecProjection } from '../../domain/spec/project-spec.ts'
import * as sandboxDetails from '../../store/sandboxes/sandbox-details.ts'
import type { BaseDeps } from '../deps.ts'

export type { RunDetails } from '../../store/sandboxes/sandbox-details.ts'

/** Everything about a sandbox that an operator may see. No secret is in it. */
export type SandboxDetails = sandboxDetails.SandboxDetailsRow & {
  readonly volumes: readonly sandboxDetails.MountedVolumeDetails[]
  /** The latest runs, newest first; at most `RUNS_SHOWN`. */
  readonly runs: readonly sandboxDetails.RunDetails[]
  /** The use of all runs that are still stored. */
  readonly usage: { readonly runs: number; readonly vcpu_seconds: number; readonly memory_mib_seconds: number }
}

/** How many runs `inspectSandbox` reads. */
const RUNS_SHOWN = 20

/** The text in place of a value that operators don't see. */
const MASKED = '***'

/**
 * Reads everything about a sandbox of any organization. The values of environment variables and the texts of scripts
 * are masked, because tenants put secrets there. Throws `sandbox_not_found`.
 */
export async function inspectSandbox(
  { db, clock }: Pick<BaseDeps, 'db' | 'clock'>,
  id: SandboxId,
): Promise<SandboxDetails> {
  return db.asSystem(async (q) => {
    const row = await sandboxDetails.find(q, id)
    if (row === null) throw new Problem('sandbox_not_found')
    const { runs, running_secs } = await sandboxDetails.runTotals(q, id, clock.now())
    return {
      ...row,
      spec: maskSecrets(row.spec),
      volumes: await sandboxDetails.mountedVolumes(q, id),
      runs: await sandboxDetails.latestRuns(q, id, RUNS_SHOWN),
      usage: {
        runs,
        vcpu_seconds: running_secs * row.vcpus,
        memory_mib_seconds: running_secs * row.memory_mib,
      },
    }
  })
}

function maskSecrets(spec: SpecProjection): SpecProjection {
  const scripts = Object.fromEntries(Object.keys(spec.runtime.scripts).map((name) => [name, MASKED]))
  return {
    ...spec,
    env: spec.env.map(({ key }) => ({ key, value: MASKED })),
    runtime: { ...spec.runtime, scripts },
  }
}
