/** A process that runs inside a network namespace and serves and connects there as its parent tells it over IPC. */
import { createSocket } from 'node:dgram'
import { Resolver } from 'node:dns/promises'
import { connect, createServer, type Socket } from 'node:net'
import type { Ask, Reply } from './network-world.ts'

const held: Socket[] = []
const received: string[] = []

const HANDLERS: { readonly [Kind in Ask['kind']]: (ask: Extract<Ask, { kind: Kind }>) => Promise<string> } = {
  serveTcp: ({ host, port, replyHex }) =>
    new Promise((resolve, reject) => {
      const server = createServer((socket) => {
        socket.on('error', () => socket.destroy())
        if (replyHex !== undefined) {
          socket.on('data', (data) => {
            const reply = answerDns(data.subarray(2), Buffer.from(replyHex, 'hex'))
            socket.write(Buffer.concat([Buffer.from([0, reply.length]), reply]))
          })
          return
        }
        socket.on('data', (data) => socket.write(data))
        socket.write(`from ${String(socket.remoteAddress)}`)
      })
      server.once('error', reject)
      server.listen({ host, port }, () => {
        resolve('listening')
      })
    }),
  serveUdp: ({ host, port, replyHex }) =>
    new Promise((resolve, reject) => {
      const socket = createSocket(host.includes(':') ? 'udp6' : 'udp4')
      socket.on('message', (message, sender) => {
        received.push(message.toString('latin1'))
        const reply = replyHex === undefined ? message : answerDns(message, Buffer.from(replyHex, 'hex'))
        socket.send(reply, sender.port, sender.address)
      })
      socket.once('error', reject)
      socket.bind(port, host, () => {
        resolve('listening')
      })
    }),
  tcp: ({ host, port, hold, from, timeoutMs }) =>
    new Promise((resolve) => {
      const socket = connect({ host, port, ...(from === undefined ? {} : { localAddress: from }) })
      socket.setTimeout(timeoutMs ?? 700, () => {
        resolve('timeout')
        socket.destroy()
      })
      socket.once('error', (error) => {
        resolve('code' in error ? String(error.code) : error.message)
      })
      socket.once('data', () => {
        resolve('connected')
        socket.setTimeout(0)
        if (hold === true) held.push(socket)
        else socket.destroy()
      })
    }),
  echo: () =>
    new Promise((resolve) => {
      const socket = held[0]
      if (socket === undefined || socket.destroyed) {
        resolve('closed')
        return
      }
      const timer = setTimeout(() => {
        resolve('timeout')
      }, 700)
      socket.once('data', () => {
        clearTimeout(timer)
        resolve('echoed')
      })
      socket.write('still there?')
    }),
  release: () => {
    for (const socket of held.splice(0)) socket.destroy()
    return Promise.resolve('released')
  },
  udp: ({ host, port, from, text }) =>
    new Promise((resolve) => {
      const socket = createSocket(host.includes(':') ? 'udp6' : 'udp4')
      const end = (result: string): void => {
        clearTimeout(timer)
        socket.close()
        resolve(result)
      }
      const timer = setTimeout(() => {
        end('timeout')
      }, 500)
      socket.once('error', (error) => {
        end('code' in error ? String(error.code) : error.message)
      })
      socket.once('message', () => {
        end('answered')
      })
      socket.bind({ port: 0, ...(from === undefined ? {} : { address: from }) }, () => {
        socket.send(text ?? 'hello', port, host)
      })
    }),
  resolve: async ({ server, name }) => {
    const resolver = new Resolver({ timeout: 700, tries: 1 })
    resolver.setServers([server])
    try {
      return (await resolver.resolve4(name)).join(',')
    } catch (error) {
      return error instanceof Error && 'code' in error ? String(error.code) : 'failed'
    }
  },
  dnsOverTcp: ({ server, queryHex }) =>
    new Promise((resolve) => {
      const query = Buffer.from(queryHex, 'hex')
      const socket = connect({ host: server, port: 53 })
      socket.setTimeout(1_000, () => {
        socket.destroy()
        resolve('timeout')
      })
      socket.once('error', () => {
        resolve('error')
      })
      socket.once('data', (data) => {
        socket.destroy()
        resolve(data.subarray(2).toString('hex'))
      })
      socket.write(Buffer.concat([Buffer.from([0, query.length]), query]))
    }),
  received: () => Promise.resolve(received.join('\n')),
}

/** A reply to a DNS query for one A record: the private address for names that start with `rebind`, else `address`. */
function answerDns(query: Buffer, address: Buffer): Buffer {
  const isRebind = query.subarray(13, 19).toString('latin1').toLowerCase() === 'rebind'
  const header = Buffer.from(query.subarray(0, 12))
  header.writeUInt16BE(0x8180, 2)
  header.writeUInt16BE(1, 6)
  header.fill(0, 8, 12)
  const end = query.indexOf(0, 12) + 5
  const record = Buffer.from('c00c00010001000000050004', 'hex')
  return Buffer.concat([header, query.subarray(12, end), record, isRebind ? Buffer.from([10, 66, 0, 10]) : address])
}

function handle(ask: Ask): Promise<string> {
  // each entry of the table takes its own kind, which TypeScript can't express
  const handler = HANDLERS[ask.kind] as (ask: Ask) => Promise<string>
  return handler(ask)
}

process.on('message', (message: { readonly id: number; readonly ask: Ask }) => {
  handle(message.ask)
    .catch((error: unknown) => `failed: ${String(error)}`)
    .then((result) => {
      const reply: Reply = { id: message.id, result }
      process.send?.(reply)
    })
    .catch((error: unknown) => {
      process.stderr.write(`${String(error)}\n`)
    })
})
process.on('disconnect', () => process.exit(0))
