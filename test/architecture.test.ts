import assert from 'node:assert/strict'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { test } from 'node:test'

// The rules of the architecture that no tool checks. Each test lists every breach as `file:line: what to do instead`.

const root = join(import.meta.dirname, '..')
const maxLines = 300

/** The layers that each layer may import, in addition to its own files. `cli` (cli.ts, cli/) may import anything. */
const mayImport: Readonly<Record<string, readonly string[]>> = {
  lib: [],
  domain: [],
  config: ['lib', 'domain', 'settings'],
  settings: ['lib', 'domain'],
  contract: ['domain'],
  store: ['domain', 'lib'],
  control: ['domain', 'contract', 'store', 'lib'],
  loops: ['control', 'store', 'domain', 'lib'],
  relay: ['lib'],
  http: ['contract', 'control', 'relay', 'domain', 'lib'],
  channel: [],
  'channel-client': ['channel', 'contract', 'control', 'domain', 'lib'],
  preview: ['channel-client', 'contract', 'control', 'domain', 'lib'],
  oidc: ['control', 'domain', 'lib'],
  ssh: ['channel-client', 'contract', 'control', 'domain', 'lib'],
  worker: ['channel', 'contract', 'domain', 'lib'],
}

/** Words of comments that promise later work or describe history. "placeholder" is allowed, because the contract uses it. */
const forbiddenWords =
  /\b(TODO|FIXME|XXX|HACK)\b|, for now\b|\b(stub(bed|s)?(?! resolver)|coming soon|not implemented yet|temporary hack)\b/i

/** The modules that Perl files may use: each is in Debian's perl-base. */
const perlBaseModules = new Set(['Errno', 'Fcntl', 'POSIX', 'Socket'])

type Source = { readonly path: string; readonly layer: string; readonly text: string; readonly code: string }

const sources = readSources('src')
const perlSources = sources.filter(({ path }) => path.endsWith('.pl'))
const tests = readSources('test')
const dashboardSources = readSources('dashboard/src')
const everything = [
  ...dashboardSources,
  ...sources,
  ...tests,
  ...readSources('setup'),
  ...readSources('bench'),
  ...readSources('migrations'),
]

test('a file imports only from the layers that its own layer may import', () => {
  const breaches = sources.flatMap((source) => {
    const { layer } = source
    const allowed = mayImport[layer]
    if (layer === 'cli') return []
    if (allowed === undefined) return [`${source.path}:1: mayImport has no entry for the layer "${layer}"; add it`]
    return importsOf(source).flatMap(({ at, target }) => {
      const imported = layerOf(target)
      return imported === layer || allowed.includes(imported) ? [] : [`${at}: ${layer} must not import ${imported}`]
    })
  })
  assertNone(breaches)
})

test('no folders of src import each other in a circle', () => {
  // A folder with subfolders is left out: its own files contain code that the subfolders share, or code that combines them.
  const folders = new Set(sources.map(({ path }) => dirname(path)))
  const leaves = new Set([...folders].filter((folder) => ![...folders].some((other) => other.startsWith(`${folder}/`))))
  const graph = new Map<string, Map<string, string>>([...leaves].map((folder) => [folder, new Map()]))
  for (const source of sources)
    for (const { at, target } of importsOf(source)) {
      const [from, to] = [dirname(source.path), dirname(target)]
      if (from !== to && leaves.has(to)) graph.get(from)?.set(to, at)
    }
  const circle = findCircle(graph)
  assertNone(
    circle.map((folder, index) => {
      const next = circle[(index + 1) % circle.length] ?? ''
      return `${graph.get(folder)?.get(next) ?? folder}: ${folder} imports ${next}; move what both need`
    }),
  )
})

test('the dashboard imports types of the contract, the channel protocol, and nothing else of src', () => {
  const breaches = dashboardSources.flatMap((source) =>
    [...source.text.matchAll(/^import (type )?[^;]*?from '((?:\.\.\/)+src\/([\w-]+)\/[^']+)'/gms)]
      .filter(([, type, , layer]) => layer !== 'channel' && !(type !== undefined && layer === 'contract'))
      .map(([, , target]) => `${source.path}: ${String(target)}: the dashboard is a client of the public API`),
  )
  assertNone(breaches)
})

test('SQL and the database driver appear in src/store only', () => {
  const sql =
    /\b(SELECT\s[^'"`]*?\sFROM\s|INSERT\s+INTO\s|UPDATE\s+\w+\s+SET\s|DELETE\s+FROM\s|(?:CREATE|ALTER|DROP)\s+(?:TABLE|INDEX|ROLE)\s)/g
  const elsewhere = sources.filter(({ layer }) => layer !== 'store')
  assertNone(breachesOf(elsewhere, sql, 'SQL belongs in src/store'))
  assertNone(breachesOf(elsewhere, /from\s*['"]pg['"]/g, 'only src/store talks to the database'))
})

test('the status of a sandbox is written through control/sandboxes/transition.ts only', () => {
  const writers = sources.filter(
    ({ layer, code }) =>
      layer === 'store' && /UPDATE\s+sandboxes\s+(?:\w+\s+)?SET\s+(\$\{|[^`']*\bstatus\s*=)/i.test(code),
  )
  assert.deepEqual(
    writers.map(({ path }) => path),
    ['src/store/sandboxes/sandbox-states.ts'],
    'the only file of the store that may write the status of an existing sandbox',
  )
  const importers = sources
    .filter(({ code }) => /from\s*['"][^'"]*\/sandbox-states\.ts['"]/.test(code))
    .map(({ path }) => path)
  assert.deepEqual(
    importers,
    ['src/control/sandboxes/transitions/transition.ts'],
    'the only file that may import the writer of the status',
  )
})

test('the time of day is read in lib/clock.ts only', () => {
  const elsewhere = sources.filter(({ path }) => path !== 'src/lib/clock.ts')
  assertNone(breachesOf(elsewhere, /\bDate\.now\b|\bnew Date\(\s*\)/g, 'take a Clock as an argument'))
})

test('connections are reset in lib/reset-socket.ts only', () => {
  const elsewhere = sources.filter(({ path }) => path !== 'src/lib/reset-socket.ts')
  assertNone(breachesOf(elsewhere, /\bresetAndDestroy\b/g, 'call resetSocket: Node may leave the socket open'))
})

test(`no file of src or the dashboard is longer than ${maxLines} lines`, () => {
  const long = [...sources, ...dashboardSources]
    .map(({ path, text }) => ({ path, lines: text.split('\n').length - 1 }))
    .filter(({ lines }) => lines > maxLines)
  assertNone(long.map(({ path, lines }) => `${path}: ${lines} lines; split off its second idea`))
})

test('files and folders have lower-case names with hyphens', () => {
  const names = /^(?:[a-z0-9]+(?:-[a-z0-9]+)*\/)+[a-z0-9]+(?:-[a-z0-9]+)*(?:\.test|\.d)?\.(?:tsx?|mjs|pl)$/
  const badlyNamed = [...sources, ...dashboardSources, ...tests].filter(({ path }) => !names.test(path))
  assertNone(badlyNamed.map(({ path }) => `${path}: use lower-case words with hyphens`))
})

test('Perl files are in src/worker/perl, are strict, begin with a comment about their purpose, and load only modules of this project and perl-base', () => {
  assert.ok(perlSources.length > 0)
  const breaches = perlSources.flatMap(({ path, text }) => [
    ...(path.startsWith('src/worker/perl/') ? [] : [`${path}: move it to src/worker/perl`]),
    ...(text.startsWith('# ') ? [] : [`${path}:1: begin with a comment that says what it does, and why in Perl`]),
    ...(/^use strict;\nuse warnings;$/m.test(text) ? [] : [`${path}: use strict and warnings`]),
    ...[...text.matchAll(/^\s*sub (\w*[A-Z]\w*)/gm)].map(
      ([, name]) => `${path}: name the sub ${String(name)} in snake_case`,
    ),
    ...[...text.matchAll(/^\s*(?:use|require) ([A-Z]\w*)/gm)]
      .filter(([, name]) => !perlBaseModules.has(name ?? ''))
      .map(([, name]) => `${path}: ${String(name)} is not in perl-base, which is all that every Debian has`),
  ])
  assertNone(breaches)
})

test('no file has state in module variables', () => {
  const variables = breachesOf(sources, /^(?:export )?(?:let|var) /gm, 'make it an argument or a local')
  const collection = /^(?:export )?const \w+(?:: [^=]+)? = new (?:Weak)?(?:Map|Set)(?:<[^(]*>)?\(\)/gm
  const collections = breachesOf(sources, collection, 'a collection that starts empty is state; make it a local')
  assertNone([...variables, ...collections])
})

test('no comment promises later work or describes history', () => {
  const breaches = everything
    .filter(({ path }) => path !== relative(root, import.meta.filename))
    .flatMap(({ path, text }) =>
      text.split('\n').flatMap((line, index) => {
        const word = forbiddenWords.exec(line)?.[0]
        return word === undefined ? [] : [`${path}:${index + 1}: "${word}"`]
      }),
    )
  assertNone(breaches)
})

function assertNone(breaches: readonly string[]): void {
  assert.equal(breaches.length, 0, `${breaches.length} breaches:\n${breaches.join('\n')}`)
}

function breachesOf(among: readonly Source[], pattern: RegExp, advice: string): readonly string[] {
  return among.flatMap((source) => findAll(source, pattern).map(({ at }) => `${at}: ${advice}`))
}

/** Every relative import of a file, with the path of the imported file. */
function importsOf(source: Source): readonly { readonly at: string; readonly target: string }[] {
  return findAll(source, /(?:\bfrom\s*|\bimport\s*\(?\s*)(['"])(\.[^'"]*)\1/g).map(({ at, groups }) => ({
    at,
    target: join(dirname(source.path), groups[1] ?? ''),
  }))
}

/** The nodes of one cycle of a graph, each followed by the node to which it points. Empty if the graph has no cycle. */
function findCircle(graph: ReadonlyMap<string, ReadonlyMap<string, string>>): readonly string[] {
  const done = new Set<string>()
  const search = (node: string, path: readonly string[]): readonly string[] => {
    if (path.includes(node)) return path.slice(path.indexOf(node))
    if (done.has(node)) return []
    for (const next of graph.get(node)?.keys() ?? []) {
      const circle = search(next, [...path, node])
      if (circle.length > 0) return circle
    }
    done.add(node)
    return []
  }
  return [...graph.keys()].map((node) => search(node, [])).find((circle) => circle.length > 0) ?? []
}

type Finding = { readonly at: string; readonly groups: readonly string[] }

function findAll({ path, code }: Source, pattern: RegExp): readonly Finding[] {
  return [...code.matchAll(pattern)].map((match) => ({
    at: `${path}:${code.slice(0, match.index).split('\n').length}`,
    groups: match.slice(1),
  }))
}

function readSources(folder: string): readonly Source[] {
  if (!existsSync(join(root, folder))) return []
  return readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
    .filter((name) => /\.(tsx?|mjs|sql|pl)$/.test(name))
    .toSorted()
    .map((name) => {
      const path = join(folder, name)
      const text = readFileSync(join(root, path), 'utf8')
      return { path, layer: layerOf(path), text, code: blankComments(text) }
    })
}

/** The layer of a file: `http` for `src/http/server/server.ts`, `config` for `src/config.ts`. */
function layerOf(path: string): string {
  return /^src\/([^/.]+)/.exec(path)?.[1] ?? path
}

/** Replaces comments with spaces, so that lines keep their numbers. Leaves strings unchanged. */
function blankComments(text: string): string {
  return text.replace(/\/\*[\s\S]*?\*\/|(^|[^:'"`\\])\/\/[^\n]*/g, (comment) => comment.replace(/[^\n]/g, ' '))
}
