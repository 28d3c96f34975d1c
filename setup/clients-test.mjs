// `npm run test:clients [-- TEST-FILE…]`: runs the newer public clients against a server: the Python SDK and `msb` 0.7.11,
// and the Rust SDK 0.7.13. CONTRIBUTING.md says how slow this is. A client that can't be installed is skipped, with the
// reason.
import { spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { findProgram } from './find-program.mjs'
import { ensureNodePackages } from './node-packages.mjs'
import { runTests } from './run-tests.mjs'
import { runMain, say } from './say.mjs'
import { withSetUpLock } from './set-up-lock.mjs'
import { ensureTestPackages } from './system-packages.mjs'

const root = fileURLToPath(new URL('..', import.meta.url))
const cache = join(root, '.setup', 'clients')
/** The Python package, which contains `msb` of the same version. */
const pythonPackage = 'microsandbox==0.7.11'
/** The tests of the npm package's `msb` that run with the newer one too. */
const msbTests = ['cli', 'files', 'logs', 'ssh'].map((name) => `test/e2e/${name}.test.ts`)

await runMain(async () => {
  ensureNodePackages(root)
  ensureTestPackages()
  const python = withSetUpLock(`${cache}/python.lock`, ensurePython)
  const rust = withSetUpLock(`${cache}/rust.lock`, buildRust)
  if (python.path === undefined && rust.path === undefined) {
    say(`NOTHING WAS TESTED: ${python.reason}; ${rust.reason}`)
    return 2
  }
  for (const { reason } of [python, rust]) if (reason !== undefined) say(`SKIPPED: ${reason}`)
  const msb = python.path === undefined ? undefined : bundledMsb(python.path)
  const given = process.argv.slice(2)
  const all = ['test/clients', ...(msb === undefined ? [] : msbTests)]
  return await runTests(root, {
    paths: given.length === 0 ? all : given,
    env: {
      ...(python.path === undefined ? {} : { SANDYARD_TEST_PYTHON: python.path, SANDYARD_TEST_MSB: msb }),
      ...(rust.path === undefined ? {} : { SANDYARD_TEST_RUST_WALK: rust.path }),
    },
    atOnce: 2,
  })
})

/** Installs the Python SDK into a virtual environment, once. */
function ensurePython() {
  const folder = join(cache, pythonPackage)
  const path = join(folder, 'bin', 'python')
  if (existsSync(join(folder, 'ready'))) return { path }
  const system = findProgram('python3')
  if (system === undefined) return { reason: 'the Python SDK and msb 0.7.11 need python3, which is not installed' }
  say(`installing the Python SDK into ${folder}: pip install ${pythonPackage} (140 MB)`)
  rmSync(folder, { recursive: true, force: true })
  const steps = [
    [system, '-m', 'venv', folder],
    [path, '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', pythonPackage],
  ]
  for (const words of steps) {
    if (!run(words)) return { reason: `the Python SDK could not be installed: ${words.join(' ')} failed` }
  }
  mkdirSync(join(folder, 'ready'))
  return { path }
}

function bundledMsb(python) {
  const script =
    'import microsandbox, os; print(os.path.join(os.path.dirname(microsandbox.__file__), "_bundled/bin/msb"))'
  return spawnSync(python, ['-c', script], { encoding: 'utf8' }).stdout.trim()
}

/** Builds the program that uses the Rust SDK. Cargo builds again only what has changed. */
function buildRust() {
  const cargo = findProgram('cargo')
  if (cargo === undefined) return { reason: 'the Rust SDK needs cargo, which is not installed' }
  const folder = join(cache, 'rust')
  say(`building the program that uses the Rust SDK in ${folder}; the first build takes minutes`)
  cpSync(join(root, 'test', 'clients', 'rust'), folder, { recursive: true })
  if (!run([cargo, 'build', '--quiet', '--manifest-path', join(folder, 'Cargo.toml')]))
    return { reason: 'the Rust SDK could not be built; the output of cargo is above' }
  return { path: join(folder, 'target', 'debug', 'walk') }
}

function run([program, ...args]) {
  return spawnSync(program, args, { stdio: ['ignore', process.stderr.fd, process.stderr.fd] }).status === 0
}
