/** A process inside a network namespace. Its parent sends requests over IPC to open servers and connections there. */
import { createSocket } from 'node:dgram'
import { Resolver } from 'node:dns/promises'
import { connect, createServer, type Socket } from 'node:net'
import { errorCodeOf } from '../../src/lib/error-code.ts'
import type { Ask, Reply } from './network-world.ts'

/** The rest of a question for the address of a name below `example`: the last label, its end, type A, class IN. */
const EXAMPLE_A = Buffer.from('076578616d706c650000010001', 'hex')

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
        if (replyHex !== undefined && message.subarray(13, 17).toString('latin1') === 'slow') return
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
        resolve(errorCodeOf(error) ?? error.message)
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
        end(errorCodeOf(error) ?? error.message)
      })
      socket.once('message', () => {
        end('answered')
      })
      socket.bind({ port: 0, ...(from === undefined ? {} : { address: from }) }, () => {
        socket.send(text ?? 'hello', port, host)
      })
    }),
  resolve: async ({ server, name, timeoutMs }) => {
    const resolver = new Resolver({ timeout: timeoutMs ?? 700, tries: 1 })
    resolver.setServers([server])
    try {
      return (await resolver.resolve4(name)).join(',')
    } catch (error) {
      return errorCodeOf(error) ?? 'failed'
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
  floodDns: ({ server, perSecond, forMs }) =>
    new Promise((resolve) => {
      const socket = createSocket('udp4')
      let sent = 0
      const timer = setInterval(() => {
        for (let one = 0; one < perSecond / 50; one++) {
          const label = Buffer.from(`slow${String(sent++).padStart(8, '0')}`)
          const head = Buffer.from('000001000001000000000000', 'hex')
          head.writeUInt16BE(sent & 0xffff, 0)
          socket.send(Buffer.concat([head, Buffer.from([label.length]), label, EXAMPLE_A]), 53, server)
        }
      }, 20)
      setTimeout(() => {
        clearInterval(timer)
        socket.close()
        resolve(String(sent))
      }, forMs)
    }),
  received: () => Promise.resolve(received.join('\n')),
}

/** A DNS reply with one A record: a private address if the name starts with `rebind`, otherwise `address`. */
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
  // the handler takes only requests of its own kind, which TypeScript can't derive from the lookup
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
