import type { Socket } from 'node:net'
import { Transform, type TransformCallback } from 'node:stream'
import { makeSearch } from './placeholders/find-placeholders.ts'
import { boundedPipe } from './bounded-pipe.ts'
import type { ConnectionMemory } from './connection-memory.ts'
import type { HostSecrets } from './placeholders/host-secrets.ts'
import { refuseViolation } from './intercept/request-body.ts'
import { RequestRefused } from './request-refused.ts'
import type { SandboxTurn } from './sandbox-turns.ts'
import { resetSocket } from '../../lib/reset-socket.ts'
import { watchPeer } from './watch-peer.ts'

type Options = {
  /** The placeholders that must not leave. Null: the bytes are not searched. */
  readonly secrets: HostSecrets | null
  readonly memory: ConnectionMemory
  readonly turn: SandboxTurn
  readonly onRefused: (refused: RequestRefused) => void
}

/**
 * Copies bytes both ways, unchanged. The end of one direction ends it on the other side; a failure of one side resets the
 * other. A placeholder that must not leave ends both, and so does a side that doesn't read while the sandbox has too many of them.
 */
export function relay(client: Socket, server: Socket, { secrets, memory, turn, onRefused }: Options): void {
  const end = (refused: RequestRefused): void => {
    onRefused(refused)
    resetSocket(client)
    resetSocket(server)
  }
  const bounds = { memory, onFull: end }
  for (const [one, other] of [
    [client, server],
    [server, client],
  ] as const) {
    watchPeer(one)
    one.on('close', () => {
      if (!one.readableEnded || !one.writableEnded) resetSocket(other)
    })
  }
  boundedPipe(server, client, bounds)
  if (secrets === null || secrets.forbidden.length === 0) {
    boundedPipe(client, server, bounds)
    return
  }
  const search = makeSearch(secrets, 'opaque')
  const check = async (bytes: Buffer): Promise<Error | null> => {
    try {
      // what waits while the client is paused is counted by `boundedPipe`
      await turn(() => (client.isPaused() ? 0 : searching.writableLength + client.readableLength))
      refuseViolation(search(bytes))
      return null
    } catch (error) {
      if (error instanceof RequestRefused) end(error)
      return error instanceof Error ? error : new Error(String(error))
    }
  }
  const pass = async (bytes: Buffer, done: TransformCallback): Promise<void> => {
    done(await check(bytes), bytes)
  }
  const searching = new Transform({
    transform(bytes: Buffer, _encoding, done) {
      void pass(bytes, done)
    },
  })
  searching.on('error', () => resetSocket(client))
  boundedPipe(client, searching, bounds)
  searching.pipe(server)
}
