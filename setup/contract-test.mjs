// `npm run test:contract`: tests openapi.json with tools of PyPI, against a real server with the simulated driver:
// Schemathesis, and a client that openapi-python-client generates. `npm test` skips them.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { findProgram } from './find-program.mjs'
import { ensureNodePackages } from './node-packages.mjs'
import { runTests } from './run-tests.mjs'
import { runMain, say, SetUpFailure } from './say.mjs'
import { withSetUpLock } from './set-up-lock.mjs'

const root = fileURLToPath(new URL('..', import.meta.url))
const packages = ['schemathesis==4.32.5', 'openapi-python-client==0.29.1']

await runMain(async () => {
  ensureNodePackages(root)
  const folder = join(root, '.setup', 'contract', packages.join(' '))
  withSetUpLock(`${root}/.setup/contract.lock`, () => ensurePython(folder))
  const given = process.argv.slice(2)
  return await runTests(root, {
    paths: given.length === 0 ? ['test/contract/python-tools.test.ts'] : given,
    env: { SANDYARD_TEST_CONTRACT_PYTHON: join(folder, 'bin') },
  })
})

/** Installs the tools into a virtual environment, once. */
function ensurePython(folder) {
  if (existsSync(join(folder, 'ready'))) return
  const python = findProgram('python3')
  if (python === undefined) throw new SetUpFailure('NOTHING WAS TESTED: python3 is not installed')
  say(`installing ${packages.join(' and ')} into ${folder}`)
  rmSync(folder, { recursive: true, force: true })
  for (const [program, ...args] of [
    [python, '-m', 'venv', folder],
    [join(folder, 'bin', 'python'), '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', ...packages],
  ]) {
    const { status } = spawnSync(program, args, { stdio: ['ignore', process.stderr.fd, process.stderr.fd] })
    if (status !== 0) throw new SetUpFailure('NOTHING WAS TESTED: the tools could not be installed; see above')
  }
  mkdirSync(join(folder, 'ready'))
}
