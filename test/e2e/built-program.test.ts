import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { runCommand } from '../../src/lib/run-command.ts'
import { mustCall } from '../support/api.ts'
import { ROOT } from '../support/documents.ts'
import { runMsb } from '../support/msb.ts'
import { childrenOf, readCommandLine } from '../support/process-tree.ts'
import { runProgram } from '../support/program.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'

// `npm start` of a clone runs the built program. The other tests run the sources.

const BUILD_LIMIT_MS = 120_000

describe('the built program', { skip: whyNoServer() }, () => {
  let program: readonly string[]
  let server: RealServer

  before(async () => {
    const file = await buildProgram()
    program = [file]
    server = await startServer({ NODE_COMPILE_CACHE: '' }, program) // the tests have one
  })
  after(() => server.close())

  test('runs sandboxes, and its worker is built as well', async () => {
    const create = { query: { start: 'true', wait_for: 'running' }, body: { name: 'built', image: DEMO_IMAGE } }
    await mustCall(server, 'create_sandbox', create)
    const { stdout } = await runMsb(server, ['exec', 'built', '--', 'sh', '-c', 'echo runs'])
    assert.equal(stdout, 'runs\n')
    const worker = childrenOf(server.pid()).find((pid) => readCommandLine(pid).startsWith('sandyard: worker'))
    const environment = readFileSync(`/proc/${String(worker)}/environ`, 'utf8')
    assert.doesNotMatch(environment, /NODE_COMPILE_CACHE=\//, 'V8 would keep what it reads from there in memory')
  })

  test('judges connections by name, in another program', async () => {
    const network = {
      policy: { rules: [{ action: 'allow', direction: 'egress', destination: { domain: 'example.com' } }] },
    }
    const create = {
      query: { start: 'true', wait_for: 'running' },
      body: { name: 'named', image: DEMO_IMAGE, network },
    }
    assert.equal((await mustCall(server, 'create_sandbox', create)).status, 'running')
  })

  test('has the commands, and lists the sandboxes of the server', async () => {
    const listed = await runProgram(['ps'], { SANDYARD_DATA_DIR: server.dataDir }, program)
    assert.match(listed.output, /\bbuilt\b/)
    const { stdout } = await runCommand(process.execPath, [...program, '--version'], { timeoutMs: BUILD_LIMIT_MS })
    assert.equal(stdout.trim(), JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')).version)
  })

  test('names the sources in stack traces, if it is asked to', async () => {
    const [file = ''] = program
    const egress = join(dirname(file), 'egress-process.js') // fails without its arguments
    const run = runCommand(process.execPath, ['--enable-source-maps', egress], { timeoutMs: BUILD_LIMIT_MS })
    const failed: unknown = await run.catch((error: unknown) => error)
    assert.match(String(failed), /src\/worker\/egress\/egress-process\.ts:\d+/)
  })
})

/** Builds the program unless it is up to date, as the start of a clone does. Resolves with the path of its first file. */
async function buildProgram(): Promise<string> {
  const build = `
    import { programOf } from '${join(ROOT, 'setup/built-program.mjs')}'
    import { ensureBuilt } from '${join(ROOT, 'setup/ensure-built.mjs')}'
    const program = programOf('${ROOT}')
    ensureBuilt('${ROOT}', [program])
    process.stdout.write(program.file)`
  const { stdout } = await runCommand(process.execPath, ['--input-type=module', '--eval', build], {
    timeoutMs: BUILD_LIMIT_MS,
  })
  return stdout
}
