import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { findDataFolderOwner } from '../../src/store/embedded/data-lock.ts'
import { findLeftovers } from '../support/leftovers.ts'
import { makeProgram, runProgram } from '../support/program.ts'
import { whyNoServer } from '../support/server.ts'
import { TIMEOUT_FACTOR } from '../support/timeout-factor.ts'
import { waitUntil } from '../support/wait.ts'
import { PROGRAM } from '../support/program-file.ts'

// How a server starts on a port in use, and how one whose driver can't open ends. Something that stays open keeps the process alive, and its networks with it.

/** The longest time from SIGTERM to the end of the process, by the documentation. */
const STOP_MOST_MS = 10_000

for (const command of ['up', 'serve'])
  test(`${command} notices a port in use before it makes anything`, async () => {
    const root = mkdtempSync(join(tmpdir(), 'sandyard-port-'))
    const dataDir = join(root, 'data')
    const other = createServer().listen(0, '127.0.0.1')
    await once(other, 'listening')
    const address = other.address()
    assert.ok(typeof address === 'object' && address !== null)
    try {
      const port = String(address.port)
      const { code, output } = await runProgram([command, '--port', port], { SANDYARD_DATA_DIR: dataDir })
      assert.equal(code, 1, output)
      assert.match(output, new RegExp(`127.0.0.1, port ${port} is already in use: .*--port or SANDYARD_PORT`))
      assert.ok(!existsSync(dataDir), output)
    } finally {
      other.close()
      rmSync(root, { recursive: true })
    }
  })

test('a server that npx started ends with the shell to which npx sends its signals', async () => {
  const root = mkdtempSync(join(tmpdir(), 'sandyard-npx-'))
  chmodSync(root, 0o711)
  const env = { ...process.env, npm_command: 'exec', SANDYARD_DATA_DIR: join(root, 'data'), SANDYARD_PORT: '0' }
  // As npx does it: the shell waits for the program, and doesn't replace itself by it.
  const shell = spawn('sh', ['-c', '"$0" "$1" serve; exit', process.execPath, PROGRAM], { env })
  let said = ''
  for (const stream of [shell.stdout, shell.stderr])
    stream.setEncoding('utf8').on('data', (text: string) => {
      said += text
    })
  const hasClosed = once(shell, 'close') // once the server has ended too, because it has the shell's output
  try {
    await waitUntil(() => /ready on/.test(said), 60_000)
    shell.kill('SIGTERM')
    await hasClosed
    assert.match(said, /SIGTERM: shutting down/)
    assert.equal(findDataFolderOwner(join(root, 'data', 'database')), null)
  } finally {
    const left = findDataFolderOwner(join(root, 'data', 'database'))
    if (left !== null) process.kill(left, 'SIGKILL')
    rmSync(root, { recursive: true })
  }
})

describe('a server whose driver failed to open', { skip: whyNoServer() }, () => {
  let root: string
  before(() => {
    root = mkdtempSync(join(tmpdir(), 'sandyard-ending-'))
    chmodSync(root, 0o711)
  })
  after(() => {
    rmSync(root, { recursive: true })
  })

  /** What makes the driver fail, after its networks are open: an obstacle in the data folder. */
  const obstacles = {
    'the store of sandboxes': 'sandboxes',
    'the image store': 'images',
  }
  for (const [what, name] of Object.entries(obstacles)) {
    test(`ends within 10 s of SIGTERM and leaves nothing on the machine: ${what} can't be opened`, async () => {
      const dataDir = join(root, name, 'data')
      mkdirSync(dataDir, { recursive: true })
      writeFileSync(join(dataDir, name), 'a file where a folder must be')
      const settings = { SANDYARD_DATA_DIR: dataDir, SANDYARD_PORT: '0', SANDYARD_DRIVER: 'oci' }
      const up = makeProgram(['up'], settings, /SANDBOXES CAN'T RUN HERE[^]*ready on/)
      await up.start()
      const fromMs = systemClock.monotonicMs()
      try {
        await up.stop()
      } finally {
        await up.kill9()
      }
      const tookMs = systemClock.monotonicMs() - fromMs
      assert.ok(tookMs < STOP_MOST_MS * TIMEOUT_FACTOR, `it took ${String(tookMs)} ms; it said:\n${up.output()}`)
      assert.deepEqual(await findLeftovers(dataDir), [], up.output())
    })
  }
})
