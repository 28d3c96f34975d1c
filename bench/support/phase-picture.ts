import { formatMs } from './numbers.ts'
import { PHASES, type Timeline } from './start-timeline.ts'

const WIDTH = 960
const LEFT = 112
const RIGHT = 64
const ROW = 19
const TOP = 34
/** Colours that can be read on a light and on a dark page. */
const COLOURS = { server: '#4c78a8', worker: '#f58518', client: '#54a24b', command: '#b279a2' } as const

/** Draws a timeline: one row for each phase, from its beginning to its end. */
export function drawTimeline({ phases, totalMs }: Timeline, title: string): string {
  const scale = (WIDTH - LEFT - RIGHT) / totalMs
  const stepMs = [5, 10, 20, 50, 100, 200, 500].find((ms) => totalMs / ms <= 12) ?? 1_000
  const height = TOP + phases.length * ROW + 24
  const bottom = height - 20
  const grid = Array.from({ length: Math.floor(totalMs / stepMs) + 1 }, (_, index) => {
    const x = at(LEFT + index * stepMs * scale)
    const label = `${String(index * stepMs)} ms`
    return `<path d="M${x} ${String(TOP - 4)}V${String(bottom)}" stroke="#8888" stroke-width=".5"/><text x="${x}" y="${String(height - 6)}" text-anchor="middle" fill="#888">${label}</text>`
  })
  const rows = phases.map(({ name, fromMs, untilMs }, index) => {
    const y = TOP + index * ROW
    const x = LEFT + fromMs * scale
    const width = Math.max(1, (untilMs - fromMs) * scale)
    const text = String(y + 12)
    const about = `${name}: ${PHASES[name] ?? ''}`
    return (
      `<text x="${String(LEFT - 6)}" y="${text}" text-anchor="end" fill="#888">${name}</text>` +
      `<rect x="${at(x)}" y="${String(y + 1)}" width="${at(width)}" height="${String(ROW - 4)}" rx="2" fill="${colourOf(name)}"><title>${about}</title></rect>` +
      `<text x="${at(x + width + 4)}" y="${text}" fill="#888">${formatMs(untilMs - fromMs)}</text>`
    )
  })
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${String(WIDTH)} ${String(height)}" font-family="system-ui, sans-serif" font-size="11">\n` +
    `<text x="${String(LEFT)}" y="16" font-size="13" fill="#888">${title}</text>\n` +
    `${[...grid, ...rows].join('\n')}\n</svg>\n`
  )
}

function colourOf(name: string): string {
  if (name.startsWith('start ')) return COLOURS.worker
  if (name === 'channel' || name === 'command') return COLOURS.command
  return name.startsWith('client') || name === 'look-up' ? COLOURS.client : COLOURS.server
}

function at(pixels: number): string {
  return pixels.toFixed(1)
}
