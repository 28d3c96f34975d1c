import { effect, signal } from '@preact/signals'

export const THEMES = ['system', 'light', 'dark'] as const
export type Theme = (typeof THEMES)[number]

const stored = localStorage.getItem('theme')
export const theme = signal<Theme>(THEMES.find((one) => one === stored) ?? 'system')

effect(() => {
  localStorage.setItem('theme', theme.value)
  document.documentElement.style.colorScheme = theme.value === 'system' ? 'light dark' : theme.value
})

/** The value of a colour of the style sheet now, for what draws on a canvas. */
export function colour(name: string): string {
  const probe = document.createElement('span')
  probe.style.color = `var(--${name})`
  document.body.append(probe)
  const value = getComputedStyle(probe).color
  probe.remove()
  return value
}
