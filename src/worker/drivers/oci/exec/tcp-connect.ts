import type { Duplex } from 'node:stream'
import { ExecFailure, TcpFailure } from '../../../channel/guest.ts'
import type { GuestProcess, TcpTarget } from '../../../channel/guest.ts'
import { TcpStream } from './tcp-stream.ts'

/**
 * Connects by a process in the sandbox, which has the sandbox's name look-up, network and policy; `start` runs
 * `guest/tcp.pl` there with arguments. Rejects with `TcpFailure`, or with the signal's reason, and then the process was reaped.
 */
export async function connectByProcess(start: StartScript, target: TcpTarget, signal: AbortSignal): Promise<Duplex> {
  signal.throwIfAborted()
  const where = `connect ${target.host}:${String(target.port)}`
  const stream = new TcpStream(await startFor(target, start, where))
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

type StartScript = (args: readonly string[]) => Promise<GuestProcess>

async function startFor({ host, port }: TcpTarget, start: StartScript, where: string): Promise<GuestProcess> {
  try {
    return await start([host, String(port)])
  } catch (error) {
    if (!(error instanceof ExecFailure)) throw error
    throw new TcpFailure(`${where}: ${error.message}`, { cause: error })
  }
}
