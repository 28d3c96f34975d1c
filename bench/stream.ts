import {
  requestFileOperation,
  openAgentChannel,
  openFile,
  runProgram,
  type AgentChannel,
} from './support/agent-channel.ts'
import { startCloud } from './support/cloud.ts'
import { startEchoServer } from './support/echo.ts'
import { median, formatNumber } from './support/numbers.ts'
import type { ResultRow } from './support/report.ts'
import { startSandbox } from './support/sandbox.ts'

const MIB = 1024 * 1024
const SIZE_MIB = 256
const ROUNDS = 5
/** The goal, as a share of the throughput of a bare WebSocket. */
const GOAL = 0.5

/**
 * Sends 256 MiB of output, and a file of that size in and out, through the command channel of a real sandbox. The limit
 * is a bare WebSocket to an echo server, which sends the same number of bytes there and back. Both clients run in this
 * process.
 */
export async function benchStream(): Promise<readonly ResultRow[]> {
  await using cloud = await startCloud({})
  await using echo = await startEchoServer()
  const { id } = await startSandbox(cloud, 'bench-stream')
  const channel = await openAgentChannel(cloud, id)
  const ways = {
    echo: () => echo.carry(SIZE_MIB * MIB),
    stdout: () => expectAll(runProgram(channel, 'head', '-c', String(SIZE_MIB * MIB), '/dev/zero')),
    'file in': () => writeAll(channel),
    'file out': () => expectAll(readAll(channel)),
  }
  const rates = { echo: [0], stdout: [0], 'file in': [0], 'file out': [0] }
  for (const way of ['echo', 'stdout', 'file in', 'file out'] as const) rates[way].length = 0
  for (let round = -1; round < ROUNDS; round++) {
    for (const way of ['echo', 'stdout', 'file in', 'file out'] as const) {
      const rate = await rateOf(ways[way])
      if (round >= 0) rates[way].push(rate)
    }
  }
  channel.close()
  return (['stdout', 'file in', 'file out'] as const).map((way) => {
    const ratio = median(rates[way]) / median(rates.echo)
    return {
      benchmark: 'stream',
      what: `${String(SIZE_MIB)} MiB, ${way}, through the command channel`,
      measured: `${formatNumber(median(rates[way]))} MB/s`,
      limit: `${formatNumber(median(rates.echo))} MB/s, bare WebSocket echo`,
      ratio,
      goal: `>= ${String(GOAL)}`,
      isMet: ratio >= GOAL,
      samples: rates,
    }
  })
}

async function rateOf(work: () => Promise<unknown>): Promise<number> {
  const beganMs = performance.now()
  await work()
  return (SIZE_MIB * MIB) / 1e6 / ((performance.now() - beganMs) / 1000)
}

async function expectAll(bytes: Promise<number>): Promise<void> {
  const came = await bytes
  if (came !== SIZE_MIB * MIB) throw new Error(`${String(came)} bytes came in place of ${String(SIZE_MIB * MIB)}`)
}

const FILE = '/root/bench'
/** The maximum number of pieces that wait in the client to be sent. */
const UNSENT_PIECES = 8

async function writeAll(channel: AgentChannel): Promise<void> {
  const handle = await openFile(channel, FILE, 'write')
  const session = channel.request('core.fs.request', { op: { Write: { handle, offset: 0, len: SIZE_MIB * MIB } } })
  const piece = Buffer.alloc(MIB, 'sandyard ')
  const unsent: Promise<void>[] = []
  for (let sent = 0; sent < SIZE_MIB; sent++) {
    unsent.push(session.send('core.fs.data', { data: piece }))
    if (unsent.length >= UNSENT_PIECES) await unsent.shift()
  }
  await session.send('core.fs.data', { data: Buffer.alloc(0) })
  await session.over
  await requestFileOperation(channel, 'CloseHandle', { handle })
}

async function readAll(channel: AgentChannel): Promise<number> {
  const handle = await openFile(channel, FILE, 'read')
  const { bytes } = await requestFileOperation(channel, 'Read', { handle, offset: 0, len: null })
  await requestFileOperation(channel, 'CloseHandle', { handle })
  return bytes
}
