import type { OrgId, SandboxId, WorkerId } from '../../domain/ids.ts'
import { isActive, type SandboxStatus } from '../../domain/sandboxes/lifecycle.ts'
import * as operatorSandboxes from '../../store/sandboxes/operator-sandboxes.ts'
import type { BaseDeps } from '../deps.ts'

export type { ListedSandbox } from '../../store/sandboxes/operator-sandboxes.ts'

/** Which sandboxes to list. Null: of any organization, of any worker, with any status. */
export type SandboxListing = {
  readonly org_id: OrgId | null
  /** The worker that runs the sandbox. If sandboxes without a run are listed too: the worker that stores its disk. */
  readonly worker_id: WorkerId | null
  readonly statuses: readonly SandboxStatus[] | null
  readonly limit: number | null
}

/** How many sandboxes one query reads. */
const PAGE_SIZE = 100

/** Lists sandboxes of all organizations in pages, newest first. If all statuses have an open run, it reads open runs only. */
export async function* listAllSandboxes(
  { db }: Pick<BaseDeps, 'db'>,
  { org_id, worker_id, statuses, limit }: SandboxListing,
): AsyncGenerator<readonly operatorSandboxes.ListedSandbox[]> {
  const read = statuses?.every(isActive) === true ? operatorSandboxes.pageOfActive : operatorSandboxes.pageOfAll
  let left = limit ?? Infinity
  for (let before: SandboxId | null = null; left > 0;) {
    const page = { org_id, worker_id, before, limit: PAGE_SIZE }
    const rows: readonly operatorSandboxes.ListedSandbox[] = await db.asSystem((q) => read(q, page))
    const matching = rows.filter(({ status }) => statuses === null || statuses.includes(status)).slice(0, left)
    left -= matching.length
    yield matching
    before = rows.at(-1)?.id ?? null
    if (rows.length < PAGE_SIZE) return
  }
}
