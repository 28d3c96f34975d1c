import { confirm } from '../ui/confirm.tsx'
import { toast } from '../ui/toast.tsx'
import { describeError } from '../ui/problem.tsx'
import { at, post, remove } from './api.ts'
import type { Sandbox } from './types.ts'

/** What people do with sandboxes, with one or with many. */

/** At most so many requests of one action are under way. */
const AT_ONCE = 8

type Named = Pick<Sandbox, 'id' | 'name'>

export async function start(sandboxes: readonly Named[]): Promise<void> {
  const done = await each(sandboxes, ({ id }) => post(at`/v1/sandboxes/${id}/start`))
  if (done.length > 0) toast(`Starting ${nameAll(done)}`)
}

/** Stops sandboxes. The way back is to start them again. */
export async function stop(sandboxes: readonly Named[]): Promise<void> {
  const done = await each(sandboxes, ({ id }) => post(at`/v1/sandboxes/${id}/stop`))
  if (done.length === 0) return
  toast(`Stopping ${nameAll(done)}`, { undo: { label: 'Start again', act: () => void startWhenStopped(done) } })
}

/** Deletes sandboxes with their disks, after a question: the API has no way back. Resolves with whether it did. */
export async function deleteAll(sandboxes: readonly Named[]): Promise<boolean> {
  const isConfirmed = await confirm({
    title: `Delete ${nameAll(sandboxes)}?`,
    text: 'What runs is stopped, and the disk is deleted with its files. Volumes and snapshots stay.',
    action: 'Delete',
  })
  if (!isConfirmed) return false
  const done = await each(sandboxes, ({ id }) => remove(at`/v1/sandboxes/${id}`))
  if (done.length > 0) toast(`Deleted ${nameAll(done)}`)
  return done.length > 0
}

async function startWhenStopped(sandboxes: readonly Named[]): Promise<void> {
  const waited = await each(sandboxes, ({ id }) => fetch(at`/v1/sandboxes/${id}/wait?for=terminal&timeout=25`))
  await start(waited)
}

/** Calls `work` for each sandbox and shows refusals. Resolves with the sandboxes for which it succeeded. */
async function each(sandboxes: readonly Named[], work: (one: Named) => Promise<unknown>): Promise<readonly Named[]> {
  const left = [...sandboxes]
  const done: Named[] = []
  const lane = async (): Promise<void> => {
    for (let one = left.shift(); one !== undefined; one = left.shift()) {
      try {
        await work(one)
        done.push(one)
      } catch (error) {
        toast(`${one.name}: ${describeError(error)}`, { kind: 'failed' })
      }
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, lane))
  return done
}

const nameAll = (sandboxes: readonly Named[]): string =>
  sandboxes.length === 1 ? (sandboxes[0]?.name ?? '') : `${String(sandboxes.length)} sandboxes`
