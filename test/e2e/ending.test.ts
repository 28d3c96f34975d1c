import assert from 'node:assert/strict'
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { findLeftovers } from '../support/leftovers.ts'
import { makeProgram } from '../support/program.ts'
import { whyNoServer } from '../support/server.ts'
import { TIMEOUT_FACTOR } from '../support/timeout-factor.ts'

// How a server whose driver can't open ends. Something that stays open keeps the process alive, and its networks with it.

/** The longest time from SIGTERM to the end of the process, by the documentation. */
const STOP_MOST_MS = 10_000

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
      const fromMs = await up.start().then(() => systemClock.monotonicMs())
      await up.stop().finally(() => up.kill9())
      const tookMs = systemClock.monotonicMs() - fromMs
      assert.ok(tookMs < STOP_MOST_MS * TIMEOUT_FACTOR, `it took ${String(tookMs)} ms; it said:\n${up.output()}`)
      assert.deepEqual(await findLeftovers(dataDir), [], up.output())
    })
  }
})
