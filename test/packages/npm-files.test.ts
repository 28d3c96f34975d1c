import assert from 'node:assert/strict'
import { cpSync, existsSync, globSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join, matchesGlob } from 'node:path'
import { after, before, test } from 'node:test'
import { runCommand } from '../../src/lib/run-command.ts'
import { assertNone, ROOT } from '../support/documents.ts'

// What the npm package contains. `npm run test:packages` packs and installs it.

const LIMIT_MS = 60_000
type Manifest = {
  readonly version: string
  readonly private?: boolean
  readonly files: readonly string[]
  readonly bin: Readonly<Record<string, string>>
}
const MANIFEST = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as Manifest
const MANIFESTS = ['package.json', 'package-lock.json', 'tsconfig.json']
let folder = ''

before(async () => {
  folder = mkdtempSync(join(tmpdir(), 'sandyard-npm-files-'))
  for (const name of ['src', 'dashboard', 'setup', 'packaging', 'migrations', ...MANIFESTS])
    cpSync(join(ROOT, name), join(folder, name), { recursive: true })
  symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'))
  await build([])
})
after(() => {
  rmSync(folder, { recursive: true, force: true })
})

test('every file of src is in dist, and every relative import of dist leads to a file', () => {
  const built = (path: string): string => path.replace(/\.ts$/, '.js')
  const sources = globSync('**/*.{ts,pl}', { cwd: join(folder, 'src') })
  assert.deepEqual(
    globSync('**/*.{js,pl}', { cwd: join(folder, 'dist'), exclude: ['dashboard'] }).toSorted(),
    sources.map(built).toSorted(),
  )
  const faults = globSync('dist/**/*.js', { cwd: folder, exclude: ['dist/dashboard'] }).flatMap((path) => {
    const text = readFileSync(join(folder, path), 'utf8')
    const targets = [...text.matchAll(/\b(?:from|import)\s*\(?\s*['"](\.{1,2}\/[^'"\n]+)['"]/g)].map(
      ([, to]) => to ?? '',
    )
    const names = [...text.matchAll(/['"][\w./-]+\.ts['"]/g)].map(([name]) => `${path} names ${name}, which dist lacks`)
    const lost = targets.filter((target) => !existsSync(join(folder, dirname(path), target)))
    return [...names, ...lost.map((target) => `${path} imports ${target}, which does not exist`)]
  })
  assertNone(faults, 'dist is incomplete')
})

test('the package has the built dashboard, with each file also compressed', () => {
  const files = globSync('**/*.{html,js,css}', { cwd: join(folder, 'dist/dashboard') })
  assert.ok(files.includes('index.html') && files.length > 3, files.join())
  const lacking = files.filter((name) => !existsSync(join(folder, 'dist/dashboard', `${name}.br`)))
  assertNone(lacking, 'not compressed')
})

test('a clone without the packages for development fetches what builds the dashboard', async () => {
  const clone = join(folder, 'clone')
  for (const name of ['dashboard', 'setup', 'src/channel', ...MANIFESTS])
    cpSync(join(ROOT, name), join(clone, name), { recursive: true })
  const ensure = `
    import { dashboardOf } from '${join(clone, 'setup/dashboard.mjs')}'
    import { ensureBuilt } from '${join(clone, 'setup/ensure-built.mjs')}'
    ensureBuilt(process.cwd(), [dashboardOf(process.cwd())], { node: process.execPath })`
  await runCommand(process.execPath, ['--input-type=module', '--eval', ensure], { timeoutMs: LIMIT_MS, cwd: clone })
  assert.ok(existsSync(join(clone, 'dist/dashboard/index.html.br')))
  assert.ok(!existsSync(join(clone, '.setup/workshop')), 'the packages of the build stayed')
})

test('the built program runs, and tells the version of package.json', async () => {
  const { stdout } = await runCommand(process.execPath, [join(folder, 'dist/cli.js'), '--version'], {
    timeoutMs: LIMIT_MS,
  })
  assert.equal(stdout.trim(), MANIFEST.version)
})

test('the version is the one of the lock file, and the package may be published', () => {
  const lock = JSON.parse(readFileSync(join(ROOT, 'package-lock.json'), 'utf8')) as { readonly version: string }
  assert.equal(lock.version, MANIFEST.version)
  assert.equal(MANIFEST.private, undefined)
})

test('the shrinkwrap has every package of the program and none for development', () => {
  type Lock = { readonly packages: Readonly<Record<string, { readonly dev?: boolean; readonly integrity?: string }>> }
  const { packages } = JSON.parse(readFileSync(join(folder, 'npm-shrinkwrap.json'), 'utf8')) as Lock
  const lock = JSON.parse(readFileSync(join(ROOT, 'package-lock.json'), 'utf8')) as Lock
  const expected = Object.keys(lock.packages).filter((path) => lock.packages[path]?.dev !== true)
  assert.deepEqual(Object.keys(packages), expected)
  assertNone(
    Object.keys(packages).filter((path) => path !== '' && packages[path]?.integrity === undefined),
    'no hash',
  )
})

test('the package has the launcher and every script of setup that the launcher needs', () => {
  const isPacked = (path: string): boolean => MANIFEST.files.some((pattern) => matchesGlob(path, pattern))
  const needed = new Set<string>()
  const visit = (path: string): void => {
    if (needed.has(path)) return
    needed.add(path)
    for (const [, name] of readFileSync(join(ROOT, path), 'utf8').matchAll(/from '\.\/([\w-]+\.mjs)'/g))
      visit(`setup/${String(name)}`)
  }
  visit('setup/prepare.mjs')
  assertNone(
    [...needed, ...Object.values(MANIFEST.bin)].filter((path) => !isPacked(path)),
    '`files` of package.json lacks it',
  )
})

test('the build can be undone', async () => {
  await build(['--clean'])
  assert.ok(!existsSync(join(folder, 'dist')) && !existsSync(join(folder, 'npm-shrinkwrap.json')))
})

function build(args: readonly string[]): Promise<unknown> {
  return runCommand(process.execPath, [join(folder, 'packaging/npm/build.mjs'), ...args], { timeoutMs: LIMIT_MS })
}
