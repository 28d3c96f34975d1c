import { isIPv4, isIPv6, type Socket } from 'node:net'
import { join } from 'node:path'
import { awaitAnswer, type Answer } from '../../lib/await-answer.ts'
import type { Log } from '../../lib/log.ts'
import { encodeFields, sendRequest, setKeepsAlive, startPerl, type PerlProcess } from '../processes/perl-process.ts'

/** Where a connection leads: to a loopback address in the network namespace of a sandbox. */
export type LoopbackTarget = {
  /** The file of the namespace. */
  readonly netnsPath: string
  /** A process that must be in the namespace, because later sandboxes have a file of the same name. */
  readonly pid: number
  /** An address for which `isLoopback` is true. */
  readonly address: string
  readonly port: number
}

/** Opens connections to servers in sandboxes that listen on loopback addresses. */
export type LoopbackConnections = {
  /**
   * Opens a connection. The socket is in the sandbox's network namespace, and this process reads and writes it directly. Rejects
   * with the reason as text, such as `connect 127.0.0.1:80: Connection refused (os error 111)`, and with the signal's reason.
   */
  connect(target: LoopbackTarget, signal: AbortSignal): Promise<Socket>
  /** Ends the helper process. Open connections continue. */
  close(): void
}

/** Whether a host is a loopback address. A name is not: each sandbox has its own names. */
export function isLoopback(host: string): boolean {
  return (isIPv4(host) && host.startsWith('127.')) || (isIPv6(host) && host === '::1')
}

const SCRIPT = join(import.meta.dirname, '../perl/loopback-connections.pl')

type Helper = { readonly perl: PerlProcess; readonly openings: Map<number, Answer<Socket>> }

/**
 * Makes the connections of a worker. One helper process opens all of them: it is started by the first, and again after it was killed.
 * A process in the sandbox for each connection took 30 ms to start, 5 MiB of memory, and copied every byte twice (2026-11).
 */
export function makeLoopbackConnections(log: Log): LoopbackConnections {
  let current: Helper | null = null
  let lastNumber = 0

  function startHelper(): Helper {
    const openings = new Map<number, Answer<Socket>>()
    const take = (number: number): Answer<Socket> | undefined => {
      const opening = openings.get(number)
      openings.delete(number)
      if (openings.size === 0) setKeepsAlive(perl, false)
      return opening
    }
    const perl = startPerl({
      script: SCRIPT,
      args: [String(process.pid)],
      onReply: ({ number, rest }) => take(number)?.reject(new Error(rest)),
      onSocket: (number, socket) => {
        const opening = take(number)
        if (opening === undefined) socket.destroy()
        else opening.resolve(socket)
      },
      onEnd: (error) => {
        if (current === helper) current = null
        for (const { reject } of openings.values())
          reject(new Error('the process that opens connections has ended', { cause: error }))
        openings.clear()
      },
      log,
    })
    const helper = { perl, openings }
    return helper
  }

  return {
    async connect({ netnsPath, pid, address, port }, signal) {
      signal.throwIfAborted()
      current ??= startHelper()
      const { perl, openings } = current
      const number = ++lastNumber
      const fields = encodeFields([netnsPath, String(pid), address, String(port)])
      return await awaitAnswer<Socket>(signal, {
        ask: (opening) => {
          openings.set(number, opening)
          setKeepsAlive(perl, true)
          sendRequest(perl, number, fields)
        },
        // The late socket is closed when it comes.
        onAbort: () => openings.set(number, { resolve: (socket) => socket.destroy(), reject: () => undefined }),
      })
    },
    close() {
      current?.perl.stdin.end()
      current = null
    },
  }
}
