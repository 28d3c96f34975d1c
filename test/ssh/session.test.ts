import assert from 'node:assert/strict'
import { constants } from 'node:os'
import { Readable, Writable } from 'node:stream'
import { buffer, text } from 'node:stream/consumers'
import { test, type TestContext } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import type ssh2 from 'ssh2'
import type { ChannelClient } from '../../src/channel-client/channel-client.ts'
import type { ExecRequest } from '../../src/channel-client/exec.ts'
import type { Guest } from '../../src/worker/channel/guest.ts'
import { serveClient } from '../support/channel-clients.ts'
import { makeLocalGuest } from '../support/local-guest.ts'
import { startSshLoopback, type SshLoopback } from '../support/ssh-loopback.ts'
import { waitUntil, waitUntilUnchanged } from '../support/wait.ts'

const MIB = 1024 * 1024

// Sessions over a real connection, also those of clients that break the rules of SSH.

type World = SshLoopback & { readonly commands: readonly unknown[] }

async function start(t: TestContext): Promise<World> {
  const local = makeLocalGuest()
  const commands: unknown[] = []
  const guest: Guest = {
    ...local,
    exec(request) {
      commands.push(request.args.at(-1))
      return local.exec({ ...request, env: ['HOME=/', ...request.env] }) // without the start-up files of this machine's user
    },
  }
  const served = await serveClient(guest)
  const loopback = await startSshLoopback(t, served.client)
  t.after(async () => {
    served.client.close()
    await served.over
  })
  return { ...loopback, commands }
}

function exec(connection: ssh2.Client, command: string): Promise<ssh2.ClientChannel> {
  return new Promise((resolve, reject) => {
    connection.exec(command, (error, opened) => {
      if (error === undefined) resolve(opened)
      else reject(error)
    })
  })
}

test('a session runs the first command that it gets, and no second one', async (t) => {
  const { connection, commands } = await start(t)
  const channel = await exec(connection, 'cat')
  const { _client: client, outgoing } = channel as unknown as {
    readonly _client: { readonly _protocol: Record<'exec' | 'subsystem', (id: number, name: string) => void> }
    readonly outgoing: { readonly id: number }
  } // the library's client asks for no second command
  client._protocol.exec(outgoing.id, 'echo second')
  client._protocol.subsystem(outgoing.id, 'sftp')
  assert.equal(await text(await exec(connection, 'echo other')), 'other\n')
  channel.end('first')
  assert.equal(await text(channel), 'first')
  assert.deepEqual(commands, ['cat', 'echo other'])
})

test('the server stops reading from a client that takes no replies', async (t) => {
  const { connection, client, server } = await start(t)
  const { _protocol: protocol } = connection as unknown as { readonly _protocol: { ping(): void } }
  client.pause()
  const before = server.bytesRead
  for (let n = 1; n <= 250_000; n++) {
    protocol.ping() // the server answers each
    if (n % 1000 === 0) await setImmediate()
  }
  await waitUntilUnchanged(() => server.bytesRead - before)
  assert.ok(server.writableLength <= 3 * 1024 * 1024, String(server.writableLength))
})

for (const [name, command] of [
  ['one after the other', 'head -c 8000000 /dev/zero; head -c 8000000 /dev/zero >&2'],
  ['at once', 'head -c 8000000 /dev/zero & head -c 8000000 /dev/zero >&2; wait'],
] as const) {
  test(`a slow client gets both outputs of a command that fills its window with them ${name}`, async (t) => {
    const { connection, server } = await start(t)
    const channel = await exec(connection, command)
    await waitUntilUnchanged(() => server.bytesWritten)
    const [stdout, stderr] = await Promise.all([buffer(channel), buffer(channel.stderr)])
    assert.deepEqual([stdout.length, stderr.length], [8_000_000, 8_000_000])
  })
}

test('a size that the client sets while its session starts is the first one of the terminal', async (t) => {
  const opening = Promise.withResolvers<ChannelClient>()
  const { connection } = await startSshLoopback(t, opening.promise)
  const channel = await new Promise<ssh2.ClientChannel>((resolve, reject) => {
    connection.shell({ rows: 24, cols: 80 }, (error, opened) => {
      if (error === undefined) resolve(opened)
      else reject(error)
    })
  })
  channel.setWindow(50, 132, 0, 0)
  await exec(connection, 'echo') // the server serves requests in their order
  const requests: ExecRequest[] = []
  opening.resolve(sandboxThat({ onExec: (request) => requests.push(request) }))
  await waitUntil(() => requests.length === 2)
  assert.deepEqual(requests[0]?.tty, { rows: 50, cols: 132, term: 'vt100' })
})

test('a session that was closed before it started runs nothing', async (t) => {
  const opening = Promise.withResolvers<ChannelClient>()
  const { connection } = await startSshLoopback(t, opening.promise)
  const channel = await exec(connection, 'first')
  channel.close()
  await exec(connection, 'second')
  const requests: ExecRequest[] = []
  opening.resolve(sandboxThat({ onExec: (request) => requests.push(request) }))
  await waitUntil(() => requests.length > 0)
  assert.deepEqual(requests.map(({ args }) => args.at(-1)), ['second']) // prettier-ignore
})

test('a process that has closed its outputs hears SIGHUP when its session is closed', async (t) => {
  const signals: number[] = []
  const outputs = [Readable.from([]), Readable.from([])] as const
  const process = {
    ...sandboxThat({}).exec({} as ExecRequest),
    stdout: outputs[0],
    stderr: outputs[1],
    signal: (signal: number) => void signals.push(signal),
  }
  const sandbox = { exec: () => process } as unknown as ChannelClient // sessions with commands use nothing else
  const { connection } = await startSshLoopback(t, sandbox)
  const channel = await exec(connection, 'exec >&- 2>&-; sleep 1000')
  channel.resume()
  await waitUntil(() => outputs.every(({ readableEnded }) => readableEnded))
  channel.close()
  await waitUntil(() => signals.length > 0)
  assert.deepEqual(signals, [constants.signals.SIGHUP])
})

test('the channels of a connection keep 32 MiB of unread input, and all of it arrives in the end', async (t) => {
  const gate = Promise.withResolvers<undefined>()
  let taken = 0
  const sandbox = sandboxThat({
    async take(piece) {
      await gate.promise
      taken += piece.length
    },
  })
  const { connection, server } = await startSshLoopback(t, Promise.resolve(sandbox))
  const channels = await Promise.all(Array.from({ length: 40 }, () => exec(connection, 'cat')))
  const before = server.bytesRead
  for (const channel of channels) channel.write(Buffer.alloc(2 * MIB))
  await waitUntilUnchanged(() => server.bytesRead)
  assert.ok(server.bytesRead - before <= 36 * MIB, String(server.bytesRead - before))
  gate.resolve(undefined)
  await waitUntil(() => taken === 40 * 2 * MIB)
})

test('the server keeps little output for a client that begins to exchange keys and never ends', async (t) => {
  let sent = 0
  const sandbox = sandboxThat({
    write(stdout) {
      sent += 64 * 1024
      stdout.push(Buffer.alloc(64 * 1024))
    },
  })
  const { connection, client } = await startSshLoopback(t, Promise.resolve(sandbox))
  const channel = await exec(connection, 'yes')
  await waitUntilUnchanged(() => sent) // the window is full
  const { _client: ssh, outgoing } = channel as unknown as {
    readonly _client: {
      readonly _protocol: { channelWindowAdjust(id: number, bytes: number): void; rekey(): void }
    }
    readonly outgoing: { readonly id: number }
  } // the library's client grants less
  const before = sent
  ssh._protocol.channelWindowAdjust(outgoing.id, 64 * MIB)
  ssh._protocol.rekey()
  client.pause() // the client doesn't see the server's part of the exchange
  await waitUntilUnchanged(() => sent)
  assert.ok(sent - before <= 4 * MIB, String(sent - before))
  client.resume()
  channel.resume()
  await waitUntil(() => sent - before >= 64 * MIB)
})

/** A sandbox whose processes run for ever, take their input by `take` and write their output by `write`. */
function sandboxThat({
  onExec = () => undefined,
  take = () => Promise.resolve(),
  write = () => undefined,
}: {
  readonly onExec?: (request: ExecRequest) => void
  readonly take?: (piece: Buffer) => Promise<void>
  readonly write?: (stdout: Readable) => void
}): ChannelClient {
  const sandbox: Pick<ChannelClient, 'exec'> = {
    exec(request) {
      onExec(request)
      const stdout = new Readable({
        read() {
          write(this)
        },
      })
      const stdin = new Writable({
        write(piece: Buffer, _encoding, done) {
          const taking = async (): Promise<void> => {
            await take(piece)
            done()
          }
          void taking()
        },
      })
      return {
        stdin,
        stdout,
        stderr: new Readable({ read: () => undefined }),
        resize: () => undefined,
        signal: () => undefined,
        exit: new Promise(() => undefined),
      }
    },
  }
  return sandbox as ChannelClient // sessions with commands use nothing else
}
