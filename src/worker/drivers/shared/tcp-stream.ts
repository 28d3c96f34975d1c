import { Duplex } from 'node:stream'
import { eachLine } from '../../../lib/streams/each-line.ts'
import { TcpFailure, type GuestProcess, ExecFailure, type TcpTarget } from '../../channel/guest.ts'

/**
 * Opens a TCP connection from a process in the sandbox, with the sandbox's name resolution, network and policy. `start` runs
 * `guest/tcp.pl` in the sandbox. Rejects with `TcpFailure` or with the signal's reason, after the process was reaped.
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
    if (signal.aborted) onAbort() // the signal aborted while the process was being started
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

const SIGKILL = 9
/** How many bytes are read ahead of a slow client, in addition to the pipe's own buffer. */
const READ_AHEAD_BYTES = 64 * 1024

/**
 * The TCP connection of a process of `guest/tcp.pl`, as one stream over the process's pipes. It emits `connect` once
 * the connection is open, and ends each direction separately. If the connection breaks, it emits a `TcpFailure` after
 * all received data was read. The stream closes once the process was reaped. `destroy` kills the process.
 */
class TcpStream extends Duplex {
  readonly #process: GuestProcess
  #receivedBytes = 0
  /** How many bytes the peer sent in total. `Infinity` until the number is known. */
  #totalBytes = Infinity
  /** The failure of the connection, as the process reported it. */
  #reported: TcpFailure | null = null
  #failure: TcpFailure | null = null
  #hasExited = false
  #written: (() => void) | null = null

  constructor(process: GuestProcess) {
    super({ allowHalfOpen: true, autoDestroy: false, readableHighWaterMark: READ_AHEAD_BYTES })
    this.#process = process
    const { stdin, stdout } = process
    stdout.on('data', (data: Buffer) => {
      if (this.#receivedBytes >= this.#totalBytes) return // more bytes than reported: the sandbox has replaced the process
      this.#receivedBytes += data.length
      if (!this.push(data)) stdout.pause()
      this.#endAtTotal()
    })
    stdin.on('drain', () => {
      this.#takeNext()
    })
    for (const pipe of [stdin, stdout, process.stderr]) {
      pipe?.on('error', () => {
        this.#takeNext() // the process has ended, and has reported why
      })
    }
    const drained = new Promise<void>((resolve) => {
      if (stdout.closed)
        resolve() // a short process may end before anyone listens
      else stdout.once('close', resolve)
    })
    const statusEnded = eachLine(process.stderr, (line) => {
      this.#onLine(line)
    })
    void Promise.all([process.exited, statusEnded, drained]).then(() => {
      this.#end()
    })
  }

  /** Reads like any stream, and emits a failure after the last bytes that came before it. */
  override read(size?: number): unknown {
    const data: unknown = super.read(size)
    if (this.#failure !== null && this.readableLength === 0) this.destroy(this.#failure)
    return data
  }

  override _read(): void {
    this.#process.stdout.resume()
  }

  override _write(data: Buffer, _encoding: BufferEncoding, written: () => void): void {
    const { stdin } = this.#process
    if (stdin.destroyed || stdin.write(data)) written()
    else this.#written = written
  }

  override _final(finished: () => void): void {
    this.#process.stdin.end()
    finished()
  }

  override _destroy(error: Error | null, destroyed: (error: Error | null) => void): void {
    const { stdin, stdout, stderr, exited } = this.#process
    if (!this.#hasExited) this.#process.signal(SIGKILL)
    for (const pipe of [stdin, stdout, stderr]) pipe?.destroy()
    void exited.then(() => {
      destroyed(error)
    })
  }

  #onLine(line: string): void {
    const [word, rest = ''] = line.split(/ (.*)/s, 2)
    if (word === 'connected') this.emit('connect')
    else if (word === 'failed') this.#reported = new TcpFailure(rest)
    else if (word === 'eof') {
      this.#totalBytes = Number(rest)
      this.#endAtTotal()
    }
  }

  #takeNext(): void {
    const written = this.#written
    this.#written = null // before the callback runs, which may start the next write at once
    written?.()
  }

  #endAtTotal(): void {
    if (this.#receivedBytes < this.#totalBytes || this.readableEnded) return
    this.push(null)
    // Nothing else reads the pipe any more. Node reports the pipe's end only once the pipe is empty.
    this.#process.stdout.resume()
  }

  #end(): void {
    this.#hasExited = true
    this.#takeNext()
    const isWhole = this.#receivedBytes >= this.#totalBytes
    this.#failure = this.#reported ?? (isWhole ? null : new TcpFailure('the connection was cut in the sandbox'))
    if (this.#failure !== null) {
      if (this.readableLength === 0) this.destroy(this.#failure)
    } else if (this.readableEnded) this.destroy()
    else this.once('end', () => this.destroy())
  }
}
