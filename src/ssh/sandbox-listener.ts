import type { Duplex } from 'node:stream'
import type { ChannelClient } from '../channel-client/channel-client.ts'
import { toolCommand } from '../contract/workers/guest-tools.ts'
import { eachLine } from '../lib/streams/each-line.ts'
import type { Random } from '../lib/random.ts'

/** Where to listen in a sandbox. Port 0 means any free port. `agent` makes a Unix socket that only the user can enter. */
export type ListenTarget =
  | { readonly kind: 'tcp'; readonly host: string; readonly port: number }
  | { readonly kind: 'unix'; readonly path: string }
  | { readonly kind: 'agent' }

/** Something that has connected to a listener. Call `fetch` or `refuse` once. */
export type Incoming = {
  /** The name of the listener. */
  readonly at: string
  /** The address of the other side: `-` and 0 for a Unix socket. */
  readonly host: string
  readonly port: number
  /** The stream of the connection. Rejects as `ChannelClient.connect` does. */
  fetch(): Promise<Duplex>
  refuse(): void
}

export type SandboxListener = {
  /** The port, or the path of the socket. */
  readonly name: string
  /** Stops listening and ends the connections. May be repeated. */
  close(): void
  /** Resolves when the listener has ended. */
  readonly closed: Promise<void>
}

/** The reason why nothing listens, from the sandbox. */
export class ListenFailure extends Error {}

const SECRET_BYTES = 16
/** The listener must not load what the sandbox's own variables name. */
const ENV = ['LC_ALL=C', 'PERL5OPT=', 'PERL5LIB=', 'LD_PRELOAD=']

/**
 * Listens in a sandbox as its user, by a program of the toolbox (`src/worker/perl/guest/listen.pl`). It ends with the channel at
 * the latest. Rejects with `ListenFailure`, which a sandbox without a toolbox always does.
 */
export function listenInSandbox(
  { client, random }: { readonly client: ChannelClient; readonly random: Random },
  target: ListenTarget,
  onIncoming: (incoming: Incoming) => void,
): Promise<SandboxListener> {
  const [cmd = '', ...args] = toolCommand('listen.pl', wordsOf(target))
  const process = client.exec({ cmd, args, env: ENV, cwd: null, user: null, tty: null })
  const secret = random.bytes(SECRET_BYTES).toString('hex')
  process.stdin.write(`${secret}\n`)
  process.stderr.resume()
  const closed = process.exit.then(() => undefined)
  const close = (): void => {
    process.stdin.end()
  }
  type Where = { readonly name: string; readonly door: number }
  const incoming = ({ name, door }: Where, number: string, [host = '-', port = '0']: readonly string[]): Incoming => ({
    at: name,
    host,
    port: Number(port),
    async fetch() {
      const stream = await client.connect(door, DOOR_HOST)
      stream.write(`${secret} ${number}\n`)
      return stream
    },
    refuse() {
      // One that doesn't read has not been asked by our program.
      if (!process.stdin.writableNeedDrain) process.stdin.write(`refuse ${number}\n`)
    },
  })
  return new Promise((resolve, reject) => {
    let where: Where = { name: '', door: 0 }
    void eachLine(process.stdout, (line) => {
      const [word, ...rest] = line.split(' ')
      if (word === 'failed') reject(new ListenFailure(rest.join(' ')))
      else if (word === 'listening') {
        const door = Number(rest.pop())
        where = { name: rest.join(' '), door }
        resolve({ name: where.name, close, closed })
      } else if (word === 'open') {
        const [number = '', ...peer] = rest
        onIncoming(incoming(where, number, peer))
      }
    })
    void process.exit.then((exit) => {
      const why = exit.kind === 'failed' ? exit.message : 'the listener ended'
      reject(new ListenFailure(why)) // without effect once it listens
    })
  })
}

/** Where `listen.pl` hands connections over. */
const DOOR_HOST = '127.0.0.1'

function wordsOf(target: ListenTarget): readonly string[] {
  switch (target.kind) {
    case 'tcp':
      return ['tcp', target.host, String(target.port)]
    case 'unix':
      return ['unix', target.path]
    case 'agent':
      return ['agent']
  }
}
