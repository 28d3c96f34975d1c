import { settingRows } from '../../config.ts'
import type { Command } from './command.ts'

/** The text of `sandyard NAME --help` for a command that has more to say, or null. */
export function helpOf({ usage, summary, details }: Command): string | null {
  return details === undefined ? null : `sandyard ${usage}\n    ${summary}\n\n${details}`
}

/** The text of `--help`: every command and every setting. */
export function help(commands: readonly (readonly [string, Command])[]): string {
  const lines = commands.map(([, { usage, summary }]) => `  sandyard ${usage}\n      ${summary}`)
  const settings = settingRows().map(
    ([variable, flag, fallback, unit, meaning]) =>
      `  ${variable}${flag === '' ? '' : ` (${flag})`}\n      ${meaning} [${unit}${fallback === '' ? '' : `; default ${fallback}`}]`,
  )
  return `Sandyard: the open, self-hosted sandbox cloud.

Commands:
${lines.join('\n')}

Settings; a flag wins over its variable:
${settings.join('\n')}
`
}
