import type ssh2 from 'ssh2'
import { ConnectFailure } from '../channel-client/tcp.ts'
import { carryStream } from './carry.ts'
import type { SshConnection } from './shared-connection.ts'

type Answer = { readonly accept: () => ssh2.ServerChannel; readonly reject: () => void }

/** Names of the sandbox itself, which its own addresses stand for: a server may listen on only one of them. */
const LOCAL_NAMES: ReadonlySet<string> = new Set(['localhost', '127.0.0.1', '::1'])

/**
 * Carries one forwarded connection (`-L`, `-D`, `-W`, `-J`) to a port that the sandbox can reach. Each direction ends by
 * itself. Never rejects.
 */
export async function serveForward(
  shared: SshConnection,
  { accept, reject }: Answer,
  target: { readonly host: string; readonly port: number },
): Promise<void> {
  try {
    const client = await shared.client()
    const host = LOCAL_NAMES.has(target.host) ? undefined : target.host
    const stream = await client.connect(target.port, host, shared.closed)
    const channel = accept()
    await shared.limitInput(channel, () => carryStream(shared, stream, channel))
  } catch (error) {
    if (!(error instanceof ConnectFailure)) shared.log.debug({ error }, 'an SSH connection could not be forwarded')
    reject()
  }
}
