import type { Socket } from 'node:net'
import { resetSocket } from '../../lib/reset-socket.ts'

/** The open connections of sandboxes, by the address of the sandbox. */
export type SandboxSockets = {
  add(sandbox: string, socket: Socket): void
  /** Destroys all connections of a sandbox. */
  destroy(sandbox: string): void
}

export function makeSandboxSockets(): SandboxSockets {
  const sockets = new Map<string, Set<Socket>>()
  return {
    add(sandbox, socket) {
      const own = sockets.get(sandbox) ?? new Set()
      sockets.set(sandbox, own.add(socket))
      socket.once('close', () => {
        own.delete(socket)
        if (own.size === 0 && sockets.get(sandbox) === own) sockets.delete(sandbox)
      })
    },
    destroy(sandbox) {
      for (const socket of sockets.get(sandbox) ?? []) resetSocket(socket)
    },
  }
}
