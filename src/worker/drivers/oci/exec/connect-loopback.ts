import type { Socket } from 'node:net'
import type { LoopbackConnections } from '../../../network/loopback-connections.ts'
import { TcpFailure, type TcpTarget } from '../../../channel/guest.ts'
import { SessionLimitReached, type SessionPermits } from '../../../channel/session-permits.ts'
import type { Container } from '../container.ts'

type ConnectDeps = { readonly loopback: LoopbackConnections; readonly sessions: SessionPermits }

/**
 * Opens a connection to a loopback address of a container, which counts as a session until it is closed. Rejects with `TcpFailure`
 * or the signal's reason.
 */
export async function connectLoopback(
  { loopback, sessions }: ConnectDeps,
  { container: { id, orgId, initPid }, netnsPath }: { readonly container: Container; readonly netnsPath: string },
  { host, port }: TcpTarget,
  signal: AbortSignal,
): Promise<Socket> {
  let release = (): void => undefined
  try {
    release = sessions.acquire({ sandbox: id, org: orgId })
    const socket = await loopback.connect({ netnsPath, pid: initPid, address: host, port }, signal)
    socket.once('close', release)
    return socket
  } catch (error) {
    release()
    if (signal.aborted || !(error instanceof Error)) throw error
    const text = error instanceof SessionLimitReached ? `${error.message} (os error 11)` : error.message
    throw new TcpFailure(text, { cause: error })
  }
}
