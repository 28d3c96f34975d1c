import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { test } from 'node:test'
import { CommanderError, type Command } from 'commander'
import { settingRows } from '../../src/config.ts'
import { makeProgram } from '../../src/cli/program.ts'
import { PROGRAM } from '../support/program-file.ts'

/** Parses a command line that must be refused before a command runs. Resolves with the printed message. */
async function refused(line: string): Promise<string> {
  const argv = line.split(' ')
  const program = await makeProgram(argv)
  let printed = ''
  const capture = (command: Command): void => {
    command.configureOutput({ ...command.configureOutput(), writeErr: (text) => (printed += text) })
    command.commands.forEach(capture)
  }
  capture(program)
  await assert.rejects(
    program.parseAsync(argv, { from: 'user' }),
    (error) => error instanceof CommanderError && error.exitCode !== 0,
    line,
  )
  return printed
}

/** Every command that has an action, by its full name, such as `worker token`. */
async function allCommands(): Promise<ReadonlyMap<string, Command>> {
  const walk = (command: Command, path: string): readonly (readonly [string, Command])[] => [
    [path, command] as const,
    ...command.commands.flatMap((child) => walk(child, `${path} ${child.name()}`.trim())),
  ]
  return new Map(walk(await makeProgram(['completion']), '').filter(([path]) => path !== ''))
}

test('a misspelled command is refused with the most similar command', async () => {
  assert.match(await refused('ogr list'), /^sandyard: unknown command 'ogr'\n\(Did you mean org\?\)/)
  assert.match(await refused('org lits'), /unknown command 'lits'\n\(Did you mean list\?\)/)
})

test('every command refuses a flag that it does not know', async () => {
  assert.match(await refused('org list --force'), /unknown option '--force'/)
  for (const [path, { options }] of await allCommands()) {
    const required = options.filter(({ mandatory }) => mandatory)
    const words = required.map((option) => (option.isBoolean() ? option.long : `${String(option.long)} x`))
    const line = [path, ...words, '--no-such-flag'].join(' ')
    assert.match(await refused(line), /unknown option '--no-such-flag'/, path)
  }
})

test('a missing or surplus argument and a missing required flag are refused by name', async () => {
  assert.match(await refused('org suspend'), /missing required argument 'slug'/)
  assert.match(await refused('org list acme'), /too many arguments for 'list'/)
  assert.match(await refused('org create Acme'), /required option '--owner <email>' not specified/)
  assert.match(await refused('key create --expires-in 1d --expires-at 2030-01-31T12:00:00Z'), /cannot be used with/)
})

test('every setting with a flag is a flag of some command, and every command and flag has a description', async () => {
  const commands = await allCommands()
  const flags = new Set([...commands.values()].flatMap(({ options }) => options.map(({ long }) => long)))
  for (const [variable, flag] of settingRows()) if (flag !== '') assert.ok(flags.has(flag), variable)
  for (const [path, command] of commands) {
    assert.notEqual(command.description(), '', path)
    for (const { long, description } of command.options) assert.notEqual(description, '', `${path} ${String(long)}`)
  }
})

async function completionScript(shell: 'bash' | 'zsh'): Promise<string> {
  const { status, stdout, stderr } = spawnSync(process.execPath, [PROGRAM, 'completion', shell], { encoding: 'utf8' })
  assert.equal(status, 0, stderr)
  for (const path of (await allCommands()).keys()) assert.ok(stdout.includes(`'sandyard ${path}'`), path)
  return stdout
}

test('completion for bash proposes the commands, flags and values that fit', async () => {
  const script = await completionScript('bash')
  const proposed = (...words: readonly string[]): readonly string[] => {
    const call = `${script}\nCOMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sandyard; printf '%s\\n' "\${COMPREPLY[@]}"`
    const { stdout, stderr } = spawnSync('bash', ['-c', call, 'bash', 'sandyard', ...words], { encoding: 'utf8' })
    assert.equal(stderr, '')
    return stdout.split('\n').filter((line) => line !== '')
  }
  assert.deepEqual(proposed('o'), ['org', 'openapi'])
  assert.deepEqual(proposed('org', 's'), ['suspend', 'show'])
  assert.deepEqual(proposed('org', 'create', 'Acme', '--o'), ['--owner'])
  assert.deepEqual(proposed('member', 'add', 'a@b.example', '--role', 'a'), ['admin'])
  assert.deepEqual(proposed('up', '--driver', 'o'), ['oci'])
  assert.deepEqual(proposed('up', '--data-dir', ''), [])
})

const hasZsh = ['/bin/zsh', '/usr/bin/zsh'].some((path) => existsSync(path))

test('completion for zsh is a script that zsh accepts', { skip: hasZsh ? false : 'zsh is not installed' }, async () => {
  const { status, stderr } = spawnSync('zsh', ['-n'], { input: await completionScript('zsh'), encoding: 'utf8' })
  assert.equal(status, 0, stderr)
})

test('completion for zsh proposes the flags of every command', async () => {
  const script = await completionScript('zsh')
  assert.match(script, /'sandyard org create'\) compadd -- .*--owner/)
  assert.match(script, /'sandyard up --driver'\) compadd -- auto microsandbox oci kubernetes simulated; return/)
})
