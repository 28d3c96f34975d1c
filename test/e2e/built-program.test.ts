import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { runCommand } from '../../src/lib/run-command.ts'
import { childrenOf, readCommandLine } from '../support/process-tree.ts'
import { PROGRAM } from '../support/program-file.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'

// All tests run the built program, as `npm start` of a clone does. These are about what it is.

const LIMIT_MS = 120_000
const whyNotBuilt = PROGRAM.endsWith('.ts')
  ? 'the program could not be built: the output of the set-up says why'
  : false

describe('the built program', { skip: whyNotBuilt || whyNoServer() }, () => {
  let server: RealServer

  before(async () => {
    server = await startServer()
  })
  after(() => server.close())

  test('starts its worker from a built file, without a cache of compiled code', () => {
    const worker = childrenOf(server.pid()).find((pid) => readCommandLine(pid).startsWith('sandyard: worker'))
    const environment = readFileSync(`/proc/${String(worker)}/environ`, 'utf8')
    assert.doesNotMatch(environment, /NODE_COMPILE_CACHE=\//, 'V8 would keep what it reads from there in memory')
  })

  test('names the sources in stack traces, if it is asked to', async () => {
    const egress = join(dirname(PROGRAM), 'egress-process.js') // fails without its arguments
    const run = runCommand(process.execPath, ['--enable-source-maps', egress], { timeoutMs: LIMIT_MS })
    const failed: unknown = await run.catch((error: unknown) => error)
    assert.match(String(failed), /src\/worker\/egress\/egress-process\.ts:\d+/)
  })
})
