import { join } from 'node:path'
import type { Log } from '../../../../lib/log.ts'
import {
  encodeFields,
  sendRequest,
  setKeepsAlive,
  startPerl,
  type PerlProcess,
} from '../../../processes/perl-process.ts'
import type { HardLimits } from './rlimits.ts'
import type { IdMap } from './id-maps.ts'

/** A user namespace that exists until it is closed and no process is in it. */
export type UserNamespace = {
  /** The path at which other processes of this machine open the namespace. Valid until `close`. */
  readonly path: string
  /** False once the namespace was closed with its helper process. */
  isOpen(): boolean
  close(): void
}

/** The input for a user namespace. */
type UserNamespaceInput = {
  /**
   * The host user who owns the namespace. The kernel charges this user for what all the namespace's processes use together:
   * inotify instances and watches, pending signals, message queues.
   */
  readonly owner: number
  readonly idMap: IdMap
  /**
   * The most that all users of the namespace have together of what the kernel counts for namespaces. At most the worker's own
   * hard limits. Null if no process will be in the namespace.
   */
  readonly limits: HardLimits | null
}

/** Makes user namespaces in a small helper process, because only a process in a new namespace can be its creator. */
export type UserNamespaces = {
  /** Creates a namespace. Rejects when the kernel refuses it. */
  create(input: UserNamespaceInput): Promise<UserNamespace>
  /** Ends the helper process. Namespaces without a process in them vanish. */
  close(): void
}

const SCRIPT = join(import.meta.dirname, '../../../perl/user-namespaces.pl')

type Pending = { readonly succeed: (rest: string) => void; readonly fail: (error: Error) => void }
type Helper = { readonly perl: PerlProcess; readonly pending: Map<number, Pending> }

/**
 * Creates the maker. Its process starts with the first namespace, and again if it was killed. `onLost` is called when the
 * process has ended: the paths of all its namespaces are then invalid.
 */
export function makeUserNamespaces(log: Log, onLost: () => void): UserNamespaces {
  let current: Helper | null = null
  let lastNumber = 0

  const startHelper = (): Helper => {
    const pending = new Map<number, Pending>()
    const perl = startPerl({
      script: SCRIPT,
      args: [String(process.pid)],
      onReply: ({ word, number, rest }) => {
        const request = pending.get(number)
        pending.delete(number)
        if (pending.size === 0) setKeepsAlive(perl, false)
        if (word === 'failed') request?.fail(new Error(rest))
        else request?.succeed(rest)
      },
      onEnd: (error) => {
        if (current?.perl === perl) {
          current = null
          onLost()
        }
        for (const { fail } of pending.values()) fail(new Error(`the process of ${SCRIPT} has ended`, { cause: error }))
        pending.clear()
      },
      log,
    })
    return { perl, pending }
  }
  const request = ({ perl, pending }: Helper, fields: readonly string[]): Promise<string> =>
    new Promise((succeed, fail) => {
      pending.set(++lastNumber, { succeed, fail })
      setKeepsAlive(perl, true)
      sendRequest(perl, lastNumber, encodeFields(fields))
    })

  return {
    async create({ owner, idMap, limits }) {
      current ??= startHelper()
      const helper = current
      const descriptor = await request(helper, [
        'make',
        String(owner),
        idMap,
        ...(limits === null ? [] : limitFields(limits)),
      ])
      return {
        path: `/proc/${String(helper.perl.pid)}/fd/${descriptor}`,
        isOpen: () => current === helper,
        close() {
          if (current !== helper) return // the namespace was closed by the end of its process
          request(helper, ['close', descriptor]).catch((error: unknown) => {
            log.debug({ error }, 'a user namespace could not be closed') // the process has ended, which closed it
          })
        },
      }
    },
    close() {
      current?.perl.stdin.end()
      current = null
    },
  }
}

/** Encodes limits for the helper, which knows them by the numbers of `asm-generic/resource.h`. */
function limitFields(limits: HardLimits): readonly string[] {
  return COUNTED.map(([resource, number]) => `${String(number)}=${String(limits[resource] ?? '-')}`)
}

const COUNTED = [
  ['nproc', 6],
  ['memlock', 8],
  ['sigpending', 11],
  ['msgqueue', 12],
] as const
