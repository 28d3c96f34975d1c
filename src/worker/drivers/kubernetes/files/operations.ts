import { finished } from 'node:stream/promises'
import { toolCommand } from '../../../../contract/workers/guest-tools.ts'
import { awaitUntilAborted } from '../../../../lib/await-answer.ts'
import { makeSemaphore, type Semaphore } from '../../../../lib/turns/semaphore.ts'
import type { GuestProcess } from '../../../channel/guest.ts'
import type { AgentLinks } from '../link/agent-links.ts'
import type { OrgPod } from '../pod.ts'

/** How many operations on one volume run at once. Others wait. */
const OPERATIONS_MAX = 16
/** What a process of an operation may take of the node's memory. It needs a tenth of it. */
const ADDRESS_SPACE_BYTES = 256 * 1024 ** 2
const MEMORY_LIMIT = { resource: 'as', soft: ADDRESS_SPACE_BYTES, hard: ADDRESS_SPACE_BYTES }
const SIGKILL = 9

/** The Pod can't be reached. */
export class PodLost extends Error {}

/** Makes the permits of the operations in one Pod. */
export function makeOperationPermits(): Semaphore {
  return makeSemaphore(OPERATIONS_MAX)
}

type OperationDeps = {
  readonly links: Pick<AgentLinks, 'of'>
  /** The folder of the toolbox in the Pods. */
  readonly tools: string
  /** Ends all waits. */
  readonly ended: AbortSignal
}

type Operation = {
  readonly target: OrgPod
  readonly permits: Semaphore
  /** The operation of `guest/volume.pl`, and its arguments. */
  readonly words: readonly string[]
  /** Kills the operation when it aborts. */
  readonly signal: AbortSignal
  /** Called once the operation has ended and its output was read, or it could not start. */
  readonly onOver: () => void
}

/** Starts an operation as soon as a permit is free. Rejects with `PodLost`, and with the signal's reason. */
export async function startOperation(
  { links, tools, ended }: OperationDeps,
  { target, permits, words, signal, onOver }: Operation,
): Promise<GuestProcess> {
  const begin = async (): Promise<GuestProcess> => {
    signal.throwIfAborted()
    const link = await links.of(target, ended).catch((error: unknown) => {
      throw new PodLost(`the Pod ${target.name} can't be reached`, { cause: error })
    })
    const command = toolCommand('volume.pl', [process.arch, ...words], tools)
    const plain = { env: ['LC_ALL=C'], hasOwnEnv: false, cwd: '/', user: null, tty: null }
    return await link.start({ ...plain, command, rlimits: [MEMORY_LIMIT] })
  }
  const started = Promise.withResolvers<GuestProcess>()
  const over = permits.run(async () => {
    const operation = await begin()
    started.resolve(operation)
    await endWith(operation, signal)
  })
  over.catch(started.reject).finally(onOver)
  return await awaitUntilAborted(started.promise, signal)
}

/**
 * Waits until a process has ended and its output was read, which may arrive after its end. Kills it when the signal aborts, and ends its
 * output, because its Pod may not answer.
 */
async function endWith(operation: GuestProcess, signal: AbortSignal): Promise<void> {
  const kill = (): void => {
    operation.signal(SIGKILL)
    operation.stdout.destroy()
  }
  signal.addEventListener('abort', kill, { once: true })
  if (signal.aborted) kill()
  await Promise.all([operation.exited, finished(operation.stdout, { writable: false }).catch(() => undefined)])
  signal.removeEventListener('abort', kill)
}
