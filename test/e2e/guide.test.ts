import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { tryCommand } from '../../src/lib/run-command.ts'
import { blocksOf, commandsOf, matchesOutput, readDocument, ROOT, type Shown } from '../support/documents.ts'
import { TIMEOUT_FACTOR } from '../support/timeout-factor.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { PROGRAM } from '../support/program-file.ts'

// Runs the commands of the README and the guide, page after page, against one server. Their output must match the pages.
//
//   console         each command is run in one shell for the page; its output is compared (`matchesOutput`). A command whose
//                   shown output begins with `error:` must fail, every other one must succeed.
//   js              is run as a module.
//   text server     shows what the server prints; each line must be one of its lines.
//   … file=NAME     is written to NAME in the folder in which the page's commands run, and not run.
//   sh              is not run: it needs another machine, a person or the Internet.

const PAGE_LIMIT_MS = 120_000
/** The line that separates the outputs of two commands. */
const MARK = '@@guide'

/**
 * The pages in the order of the guide's own list. The page about organizations comes last, because it creates a second
 * organization.
 */
const PAGES = [
  'README.md',
  ...[...readDocument('docs/guide/README.md').matchAll(/\]\(([a-z-]+\.md)\)/g)].map(
    ([, page]) => `docs/guide/${page ?? ''}`,
  ),
]

type Step = Shown | { readonly file: string; readonly text: string }

/** The commands of a page, in order. A `js` block is a command without output to compare. */
function stepsOf(page: string): readonly Step[] {
  return blocksOf(readDocument(page)).flatMap((block, index): readonly Step[] => {
    const file = block.words.find((word) => word.startsWith('file='))?.slice('file='.length)
    if (file !== undefined) return [{ file, text: block.text }]
    if (block.language === 'console') return commandsOf(block)
    if (block.language !== 'js') return []
    const name = `block-${String(index)}.mjs`
    return [
      { file: name, text: block.text },
      { command: `node ${name}`, output: ['…'], line: block.line },
    ]
  })
}

/** The shell script of a page. As the guide says, it calls `msb` and `sandyard` of this tree through `npx`. */
function scriptOf(steps: readonly Step[]): string {
  const program = (name: string, path: string): string => `${name}() { node ${path} "$@"; }`
  return [
    program('msb', join(ROOT, 'node_modules/.bin/msb')),
    program('sandyard', PROGRAM),
    'npx() { "$@"; }',
    ...steps.map((step) =>
      'file' in step
        ? `cat > ${step.file} <<'${MARK}'\n${step.text}\n${MARK}`
        : `{ ${step.command}\n} </dev/null 2>&1; echo "${MARK} $?"`,
    ),
  ].join('\n')
}

describe('the guide', { skip: whyNoServer() }, () => {
  let server: RealServer
  let root: string

  before(async () => {
    server = await startServer({ SANDYARD_DRIVER: 'oci' }) // the pages show this driver, even on machines that can run microVMs
    root = mkdtempSync(join(tmpdir(), 'sandyard-guide-'))
    symlinkSync(join(ROOT, 'node_modules'), join(root, 'node_modules'))
  })
  after(async () => {
    rmSync(root, { recursive: true, force: true })
    await server.close()
  })

  test('the README shows what the server prints as it starts', () => {
    const printed = server.output().replaceAll(server.url, 'http://127.0.0.1:8080').split('\n')
    const shown = blocksOf(readDocument('README.md')).find(({ words }) => words.includes('server'))
    for (const row of shown?.text.split('\n').filter((text) => !/^\$|MSB_API_KEY|^$/.test(text)) ?? ['no such block']) {
      assert.ok(
        printed.some((line) => matchesOutput([row], line)),
        `the server printed no line like: ${row}`,
      )
    }
  })

  for (const page of PAGES) {
    test(`${page}: every command prints what the page shows`, async () => {
      const folder = join(root, page.replaceAll('/', '-'))
      mkdirSync(folder)
      const steps = stepsOf(page)
      const { stdout } = await tryCommand('bash', ['-s'], {
        input: scriptOf(steps),
        timeoutMs: PAGE_LIMIT_MS * TIMEOUT_FACTOR,
        cwd: folder,
        env: {
          ...withoutSettings(process.env),
          ...server.clientEnv,
          SANDYARD_DATA_DIR: server.dataDir,
          PATH: `${dirname(process.execPath)}:${process.env['PATH'] ?? ''}`,
        },
      })
      const outputs = [...stdout.matchAll(new RegExp(`([^]*?)${MARK} (\\d+)\\n`, 'g'))]
      const commands = steps.filter((step) => 'command' in step)
      assert.equal(outputs.length, commands.length, `the shell ended early:\n${stdout}`)
      for (const [index, { command, output, line }] of commands.entries()) {
        const [, real = '', code] = outputs[index] ?? []
        const where = `${page}:${String(line)}: ${command}`
        const mustFail = output[0]?.startsWith('error:') === true
        assert.equal(code !== '0', mustFail, `${where}\nexit code ${String(code)}:\n${real}`)
        assert.ok(matchesOutput(output, real), `${where}\nprinted:\n${real}\nbut the page shows:\n${output.join('\n')}`)
      }
    })
  }
})

/** The environment of this process, without variables that set a server, a database or a setting. */
function withoutSettings(env: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(env).filter(([name]) => !/^(SANDYARD_|MSB_|DATABASE_)/.test(name)))
}
