import type { Duplex } from 'node:stream'
import { ExecFailure, TcpFailure } from '../../channel/guest.ts'
import type { GuestExec, GuestProcess, TcpTarget } from '../../channel/guest.ts'
import { TcpStream } from './tcp-stream.ts'

/** What connections are made with. */
export type TcpConnector = {
  /** Starts a process in the sandbox. */
  readonly exec: (request: GuestExec) => Promise<GuestProcess>
  /** The command line that runs `guest/tcp.pl` with these arguments. */
  readonly command: (args: readonly string[]) => readonly string[]
}

/**
 * Connects by a process in the sandbox, which is user 0 there and has the sandbox's name look-up, network and policy.
 * Rejects with `TcpFailure`, or with the signal's reason, and then the process was reaped.
 */
export async function connectByProcess(
  connector: TcpConnector,
  target: TcpTarget,
  signal: AbortSignal,
): Promise<Duplex> {
  signal.throwIfAborted()
  const where = `connect ${target.host}:${String(target.port)}`
  const stream = new TcpStream(await start(connector, target, where))
  return await new Promise((resolve, reject) => {
    let failure: Error = new TcpFailure(`${where}: the sandbox could not make the connection`)
    const onAbort = (): void => {
      stream.destroy()
    }
    const onClose = (): void => {
      signal.removeEventListener('abort', onAbort)
      reject(signal.aborted && signal.reason instanceof Error ? signal.reason : failure)
    }
    stream.on('error', (error) => {
      failure = error
    })
    stream.once('close', onClose)
    stream.once('connect', () => {
      signal.removeEventListener('abort', onAbort)
      stream.removeListener('close', onClose)
      resolve(stream)
    })
    signal.addEventListener('abort', onAbort, { once: true })
    if (signal.aborted) onAbort() // while the process was being started
  })
}

/** The sandbox's own settings must not reach a program of ours: these would make it load files of the sandbox. */
const NO_SETTINGS = ['LD_PRELOAD=', 'LD_AUDIT=', 'PERL5OPT=', 'PERL5DB=', 'LC_ALL=C']

async function start({ exec, command }: TcpConnector, { host, port }: TcpTarget, where: string): Promise<GuestProcess> {
  const [cmd = '', ...args] = command([host, String(port)])
  try {
    return await exec({ cmd, args, env: NO_SETTINGS, cwd: '/', user: '0:0', tty: null, rlimits: [] })
  } catch (error) {
    if (!(error instanceof ExecFailure)) throw error
    throw new TcpFailure(`${where}: ${error.message}`, { cause: error })
  }
}
