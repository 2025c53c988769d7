# The manifest that the seed's config names: its inputs are facts, its output is a file.
file { '/etc/example':
  content => "${::foo} ${::bar}\n",
}

file { "${::heat_outputs_path}.result":
  content => "the file holds ${::foo} and ${::bar}",
  require => File['/etc/example'],
}
