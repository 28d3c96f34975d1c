import { displayWidth, escapeControls } from '../../../lib/terminal-text.ts'

/** A titled list of facts. Facts whose value is null are left out, and a section without facts too. */
export type Section = {
  readonly title: string
  readonly facts: readonly (readonly [name: string, value: string | number | null])[]
}

/** Formats sections as text: a title, and a line for each fact. Control characters are escaped. */
export function formatSections(sections: readonly Section[]): string {
  const shown = sections
    .map(({ title, facts }) => ({
      title,
      facts: facts.flatMap(([name, value]) => (value === null ? [] : [[name, escapeControls(String(value))] as const])),
    }))
    .filter(({ facts }) => facts.length > 0)
  const names = shown.flatMap(({ facts }) => facts.map(([name]) => displayWidth(escapeControls(name))))
  const width = Math.min(MAX_NAME_WIDTH, Math.max(0, ...names))
  const texts = shown.map(({ title, facts }) => {
    const lines = facts.map(([name, value]) => `  ${escapeControls(name).padEnd(width)}  ${value}`.trimEnd())
    return `${[title, ...lines].join('\n')}\n`
  })
  return texts.join('\n')
}

/** A longer name, such as that of a label, doesn't move the values of the other facts. */
const MAX_NAME_WIDTH = 24
