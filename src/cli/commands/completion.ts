import { Argument, type Command } from 'commander'
import { runs } from '../command.ts'

/**
 * Defines `sandyard completion`, which prints a completion script for a shell. The script is generated from the
 * commands and their flags.
 */
export function defineCompletion(completion: Command): void {
  completion.addHelpText(
    'after',
    `
Add one of these to ~/.bashrc or ~/.zshrc:
  source <(sandyard completion bash)
  source <(sandyard completion zsh)`,
  )
  completion.addArgument(new Argument('<shell>', 'the shell').choices(Object.keys(SCRIPTS)))
  runs(completion, async ({ args: [shell = ''] }) => {
    if (completion.parent !== null) process.stdout.write(SCRIPTS[shell]?.(readTree(completion.parent)) ?? '')
  })
}

/** The words that may follow a command such as `sandyard org`, and the values that its flags take. */
type Completions = {
  readonly path: string
  readonly words: readonly string[]
  /** The flags with their possible values. A flag without values takes any text, for which the shell proposes files. */
  readonly flags: readonly { readonly name: string; readonly values: readonly string[] }[]
}

/** Lists the completions of a command, followed by those of all its subcommands. */
export function readTree(command: Command, parentPath = ''): readonly Completions[] {
  const path = `${parentPath} ${command.name()}`.trimStart()
  const flags = command.options.map((option) => ({ name: option.long ?? '', takesText: !option.isBoolean(), option }))
  const own: Completions = {
    path,
    words: [
      ...command.commands.map((child) => child.name()),
      ...command.registeredArguments.flatMap(({ argChoices }) => argChoices ?? []),
      ...flags.map(({ name }) => name),
      '--help',
    ],
    flags: flags
      .filter(({ takesText }) => takesText)
      .map(({ name, option }) => ({ name, values: option.argChoices ?? [] })),
  }
  return [own, ...command.commands.flatMap((child) => readTree(child, path))]
}

type Script = (tree: readonly Completions[]) => string

/**
 * The completion scripts by shell. Each script finds the deepest command on the command line, then proposes the words
 * that may follow this command or its last flag.
 */
const SCRIPTS: Readonly<Record<string, Script>> = {
  bash: (tree) => `# Completion of sandyard for bash: source <(sandyard completion bash)
_sandyard() {
  local current=\${COMP_WORDS[COMP_CWORD]} previous=\${COMP_WORDS[COMP_CWORD-1]} command=sandyard word
  for word in "\${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$command $word" in
      ${pathPattern(tree)}) command="$command $word" ;;
    esac
  done
  COMPREPLY=()
  case "$command $previous" in
${flagCases(tree, (values) => `COMPREPLY=($(compgen -W '${values}' -- "$current"))`)}
  esac
  case "$command" in
${wordCases(tree, (words) => `COMPREPLY=($(compgen -W '${words}' -- "$current"))`)}
  esac
}
complete -o default -F _sandyard sandyard
`,
  zsh: (tree) => `#compdef sandyard
# Completion of sandyard for zsh: source <(sandyard completion zsh)
_sandyard() {
  local previous=\${words[CURRENT-1]} command=sandyard word
  for word in "\${(@)words[2,CURRENT-1]}"; do
    case "$command $word" in
      ${pathPattern(tree)}) command="$command $word" ;;
    esac
  done
  case "$command $previous" in
${flagCases(tree, (values) => (values === '' ? '_files' : `compadd -- ${values}`))}
  esac
  case "$command" in
${wordCases(tree, (words) => `compadd -- ${words}; _files`)}
  esac
}
compdef _sandyard sandyard
`,
}

function pathPattern(tree: readonly Completions[]): string {
  const paths = tree.map(({ path }) => path).filter((path) => path.includes(' '))
  return paths.map((path) => `'${path}'`).join('|')
}

function flagCases(tree: readonly Completions[], propose: (values: string) => string): string {
  const cases = tree.flatMap(({ path, flags }) =>
    flags.map(({ name, values }) => `    '${path} ${name}') ${propose(values.join(' '))}; return ;;`),
  )
  return cases.join('\n')
}

function wordCases(tree: readonly Completions[], propose: (words: string) => string): string {
  return tree.map(({ path, words }) => `    '${path}') ${propose(words.join(' '))} ;;`).join('\n')
}
